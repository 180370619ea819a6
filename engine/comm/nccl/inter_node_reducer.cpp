#include "engine/comm/nccl/inter_node_reducer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/comm/reduce.h"

namespace hvd::comm::nccl {
namespace {

using namespace std::chrono_literals;

/// Time between two checks for roll calls and aborts of peers.
constexpr auto kLook = 20ms;

}  // namespace

InterNodeReducer::InterNodeReducer(Communicator& across) : across_(across), thread_([this] { run(); }) {}

InterNodeReducer::~InterNodeReducer() {
  {
    const MutexLock lock(mutex_);
    over_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void InterNodeReducer::submit(const Job& job, std::shared_ptr<gpu::HostGate> gate) {
  const MutexLock lock(mutex_);
  if (over_) {
    gate->open();
  } else {
    entries_.push_back({job, std::move(gate)});
    changed_.notify_all();
  }
}

bool InterNodeReducer::busy() {
  const MutexLock lock(mutex_);
  return !entries_.empty();
}

void InterNodeReducer::check() {
  const MutexLock lock(mutex_);
  if (failure_) throw Error(*failure_);
}

void InterNodeReducer::abort(const std::string& reason) noexcept {
  across_.control().abort(reason);
  const MutexLock lock(mutex_);
  over_ = true;
  // The thread may still write the memory of the first job, so the thread itself opens that job's gate.
  for (std::size_t i = reducing_ ? 1 : 0; i < entries_.size(); ++i) entries_[i].gate->open();
  changed_.notify_all();
}

std::optional<InterNodeReducer::Entry> InterNodeReducer::next() {
  const MutexLock lock(mutex_);
  while (entries_.empty() && !over_) changed_.wait(mutex_);
  reducing_ = !over_;
  if (over_) return std::nullopt;
  return entries_.front();
}

void InterNodeReducer::run() {
  try {
    while (const std::optional<Entry> entry = next()) {
      reduce(*entry);
      const MutexLock lock(mutex_);
      reducing_ = false;
      entry->gate->open();
      entries_.pop_front();
    }
  } catch (const std::exception& error) {
    const auto* const ours = dynamic_cast<const Error*>(&error);
    const std::string text =
        fmt::format("reduction between nodes (rank numbers here are node numbers): {}", error.what());
    across_.control().abort(error.what());
    const MutexLock lock(mutex_);
    reducing_ = false;
    if (over_) entries_.front().gate->open();
    failure_.emplace(ours != nullptr ? ours->code() : Errc::kBackend, text);
  }
}

void InterNodeReducer::reduce(const Entry& entry) {
  await_stream(entry);
  const Job& job = entry.job;
  const bool mean = job.op == ReduceOp::kAverage;
  auto* const data = static_cast<std::byte*>(job.data);
  if (mean && job.divide_first) divide(data, job.count, job.dtype, job.divisor);
  across_.data().all_reduce(data, job.count, job.dtype, mean ? ReduceOp::kSum : job.op, job.deadline);
  if (mean && !job.divide_first) divide(data, job.count, job.dtype, job.divisor);
}

void InterNodeReducer::await_stream(const Entry& entry) {
  while (!entry.gate->await_reached(std::min(entry.job.deadline.when(), Clock::now() + kLook))) {
    across_.control().answer_roll_call("waiting until the GPU has finished the reduction inside the node");
    across_.control().throw_if_aborted();
    if (entry.job.deadline.passed()) {
      const Topology& where = across_.topology();
      throw Error(Errc::kTimeout,
                  fmt::format("the GPU of host {} did not finish the reduction inside the node by the deadline: a rank "
                              "of that node is late, or a kernel hangs; find out which, or raise {}",
                              where.hosts.at(static_cast<std::size_t>(where.rank)), entry.job.deadline.set_by()));
    }
  }
}

}  // namespace hvd::comm::nccl
