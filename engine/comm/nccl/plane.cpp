#include "engine/comm/nccl/plane.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "engine/base/align.h"
#include "engine/base/error.h"
#include "engine/comm/nccl/trial.h"
#include "engine/gpu/poll_schedule.h"

namespace hvd::comm::nccl {
namespace {

using namespace std::chrono_literals;

/// How long a plane waits for NCCL's abort, which stops NCCL's threads and frees NCCL's memory. The time is enough if
/// no graph holds the communicator.
constexpr auto kLetGo = 5s;

/// Alignment that NCCL needs to register a buffer. Source: NCCL_WIN_REQUIRED_ALIGNMENT, NCCL 2.28.
constexpr std::size_t kAlignBytes = 4096;

std::size_t rounded_up(std::size_t bytes) { return align_up(bytes, kAlignBytes); }

std::string seconds_text(Clock::time_point since) {
  const auto tenths = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - since).count() / 100;
  return fmt::format("{}.{} s", tenths / 10, tenths % 10);
}

}  // namespace

/// Either registered memory from NCCL or plain device memory.
class Plane::Memory final : public RegisteredMemory {
 public:
  Memory(Plane& plane, std::size_t bytes) : plane_(plane) {
    if (!plane.alone() && plane.options_.register_memory) take_registered(bytes);
    if (memory_.empty()) {
      block_ = plane.runtime_.allocate(rounded_up(bytes) + kAlignBytes, "memory to reduce");
      void* start = block_->bytes.data();
      std::size_t space = block_->bytes.size();
      std::align(kAlignBytes, rounded_up(bytes), start, space);
      memory_ = {static_cast<std::byte*>(start), bytes};
    }
    plane.memory_.push_back(this);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() override {
    deregister_memory();
    std::erase(plane_.memory_, this);
    if (!block_) static_cast<void>(plane_.api_->free(memory_.data()));
  }
  /// Registers memory that came from NCCL. Leaves plain memory unregistered.
  void register_memory() {
    if (block_) {
      plane_.unregistered_ = "it is plain memory";
      return;
    }
    const Result result = plane_.call([&](Comm comm) {
      return plane_.api_->comm_register(comm, {memory_.data(), rounded_up(memory_.size())}, registration_);
    });
    if (result.status == Status::kFailed) {
      plane_.unregistered_ = "ncclCommRegister: " + plane_.explain(result);
      registration_ = {};
    } else if (result.status == Status::kDone && registration_.native == nullptr) {
      plane_.unregistered_ = "ncclCommRegister gave no handle, as with NCCL_LOCAL_REGISTER=0";
    }
  }
  void deregister_memory() {
    if (registration_.native == nullptr || plane_.aborted_) return;
    const Registration gone = std::exchange(registration_, {});
    static_cast<void>(plane_.call([&](Comm comm) { return plane_.api_->comm_deregister(comm, gone); }));
  }
  [[nodiscard]] std::span<std::byte> bytes() const override { return memory_; }

 private:
  void take_registered(std::size_t bytes) {
    void* data = nullptr;
    if (const Result result = plane_.api_->allocate(rounded_up(bytes), data); result.status != Status::kDone) {
      plane_.unregistered_ = "ncclMemAlloc: " + plane_.explain(result);
      return;  // the caller tries plain memory, whose error says how much is free
    }
    memory_ = {static_cast<std::byte*>(data), bytes};
    register_memory();
  }

  Plane& plane_;
  gpu::DeviceMemory block_;  // empty if the memory came from NCCL
  std::span<std::byte> memory_;
  Registration registration_;
};

Plane::Plane(Communicator& host, gpu::GpuRuntime& runtime, std::shared_ptr<Api> api, const NcclOptions& options,
             std::string here, Deadline deadline)
    : host_(host),
      runtime_(runtime),
      api_(std::move(api)),
      options_(options),
      here_(std::move(here)),
      stream_(runtime.make_stream(gpu::Priority::kHigh)) {
  if (!alone()) connect(deadline);
}

Plane::~Plane() {
  if (alone()) return;
  try {
    throw_if_aborted();
    host_.control().throw_if_aborted();
    disconnect(options_.deadline.from_now());
  } catch (...) {  // a peer has not finished; a destructor cannot throw the error
    Plane::abort();
  }
  // The plane cannot destroy graphs. If a graph still holds the communicator, the aborting thread outlives the plane.
  static_cast<void>(await_abort(Deadline::after(wait_timed_out() ? 0s : kLetGo)));
}

void Plane::connect(Deadline deadline) {
  std::optional<Trial> trial;  // declared here, so that its memory is freed after drain()
  try {
    trial.emplace(runtime_);
    create(deadline);
    trial->run(*this, host_.topology(), here_, deadline);
  } catch (const Error& error) {
    Plane::abort();
    // The loss of a peer is told by make_nccl(), or by the engine after a roll call.
    if (error.code() != Errc::kPeerLost) host_.control().abort(error.what());
    const Deadline patience = Deadline::after(kLetGo);
    runtime_.drain(stream_);
    if (!await_abort(patience) && trial) trial->leave_memory();
    throw;
  }
}

void Plane::disconnect(Deadline deadline) {
  wait_for_call(call([&](Comm comm) { return api_->finalize(comm); }), "ncclCommFinalize", deadline);
  destroy(deadline);
}

void Plane::reconnect(const NcclOptions& options, Deadline deadline) {
  throw_if_aborted();
  options_.max_ctas = options.max_ctas;
  options_.register_memory = options.register_memory;
  if (alone()) return;
  complete("what was enqueued before connecting anew", deadline);
  for (Memory* const memory : memory_) memory->deregister_memory();
  disconnect(deadline);
  unregistered_.clear();
  connect(deadline);
  if (!options_.register_memory) return;
  for (Memory* const memory : memory_) memory->register_memory();
  wait_for_call(state(), "registering memory anew", deadline);
}

bool Plane::registers_memory() const { return !alone() && options_.register_memory && unregistered_.empty(); }

bool Plane::alone() const { return host_.topology().size == 1; }

std::string Plane::doing(const std::string& what) const { return fmt::format("{}: {}", here_, what); }

UniqueId Plane::agree_on_id(Deadline deadline) {
  UniqueId id{};
  Bytes message;
  if (host_.topology().rank == 0) {
    const Result result = api_->unique_id(id);
    if (result.status == Status::kDone) {
      message.assign(id.begin(), id.end());
    } else {
      const std::string trouble = doing("ncclGetUniqueId: " + api_->explain(result, {}));
      const auto bytes = std::as_bytes(std::span(trouble));
      message.assign(id.size(), std::byte{0});  // a message longer than an id contains an error text after the id
      message.insert(message.end(), bytes.begin(), bytes.end());
    }
  }
  message = host_.control().broadcast(message, 0, deadline);
  if (message.size() != id.size()) {
    const std::string text = text_of(message);
    throw Error(Errc::kBackend, text.substr(std::min(text.size(), id.size())));
  }
  std::copy(message.begin(), message.end(), id.begin());
  return id;
}

void Plane::create(Deadline deadline) {
  runtime_.make_current();
  const UniqueId id = agree_on_id(deadline);
  const Topology& where = host_.topology();
  const CommConfig config{.rank = where.rank, .size = where.size, .max_ctas = options_.max_ctas};
  Comm made;
  const Result result = api_->init_rank(made, id, config);
  {
    const MutexLock lock(mutex_);
    comm_ = made;
  }
  wait_for_call(result, fmt::format("ncclCommInitRankConfig of {} ranks", where.size), deadline);
}

template <class Call>
Result Plane::call(Call&& body) {
  ending_->calls.fetch_add(1);
  Comm comm;
  {
    const MutexLock lock(mutex_);
    comm = comm_;
  }
  const std::lock_guard lock(owners_call_);
  const Result result = aborted_ ? Result{.status = Status::kFailed} : body(comm);
  ending_->calls.fetch_sub(1);
  return result;
}

Result Plane::state() {
  const MutexLock lock(mutex_);
  if (aborted_) return {.status = Status::kFailed};
  if (comm_.native != nullptr) return api_->state(comm_);
  const MutexLock theirs(ending_->mutex);
  return {.status = ending_->freeing ? Status::kInProgress : Status::kDone};
}

std::string Plane::explain(Result result) {
  const MutexLock lock(mutex_);
  return api_->explain(result, comm_);
}

void Plane::wait_for_call(Result result, const std::string& what, Deadline deadline) {
  // Creation and the first collectives take about 0.1 to 10 s. A later call takes about 20 us, in which NCCL starts a
  // thread that enqueues. Therefore the first checks follow each other without a sleep.
  const auto begin = Clock::now();
  gpu::PollSchedule poll_schedule(begin);
  for (; result.status == Status::kInProgress; result = state()) {
    hear_peers(doing(what));
    if (deadline.passed()) {
      throw Error(Errc::kTimeout,
                  doing(fmt::format("{} did not finish within {}: a rank is not there, or the network between them "
                                    "does not work (NCCL_DEBUG=INFO, NCCL_SOCKET_IFNAME); or raise {}",
                                    what, seconds_text(begin), deadline.set_by())));
    }
    if (const auto nap = poll_schedule.next_sleep(Clock::now()); nap.count() > 0) {
      std::this_thread::sleep_for(nap);
    } else {
      std::this_thread::yield();
    }
  }
  if (result.status == Status::kFailed) refuse(result, what);
}

void Plane::hear_peers(const std::string& status) {
  throw_if_aborted();
  host_.control().answer_roll_call(status);
  host_.control().look_for_dead();  // NCCL does not notice the end of a rank on this host
}

void Plane::refuse(Result result, const std::string& what) {
  throw_if_aborted();
  const std::string explanation = explain(result);
  host_.control().throw_if_aborted();  // throws a peer's reason instead, if one has arrived
  throw Error(result.remote ? Errc::kPeerLost : Errc::kBackend,
              doing(fmt::format("{}: {}{}", what, explanation, result.remote ? "; a peer is lost or gave up" : "")));
}

void Plane::throw_if_aborted() {
  if (aborted_) throw Error(Errc::kInterrupted, doing("communication was aborted"));
}

std::unique_ptr<RegisteredMemory> Plane::allocate(std::size_t bytes, Deadline deadline) {
  throw_if_aborted();
  runtime_.make_current();
  auto memory = std::make_unique<Memory>(*this, bytes);
  if (!alone()) wait_for_call(state(), fmt::format("registering {} bytes", bytes), deadline);
  runtime_.fill(memory->bytes().data(), std::byte{0}, bytes, stream_);
  complete("zeroing memory", deadline);
  return memory;
}

void Plane::enqueue(Function function, const std::string& name, const CallArguments& what, Deadline deadline) {
  throw_if_aborted();
  if (alone() || what.count == 0) return;
  // Operations that only move data never pass kI16: see moved_as().
  if (const std::string why = reduce_refusal(what.dtype); !why.empty()) throw Error(Errc::kUnsupported, why);
  runtime_.make_current();
  const Result result = call([&](Comm comm) { return ((*api_).*function)(comm, what, stream_); });
  const std::string text = fmt::format("{} ({} bytes)", name, what.count * size_of(what.dtype));
  if (grouped_ && result.status != Status::kFailed) return;
  wait_for_call(result, text, deadline);
}

void Plane::together(const std::function<void()>& calls, Deadline deadline) {
  group(calls, "several reductions", deadline);
}

void Plane::group(const std::function<void()>& calls, const std::string& name, Deadline deadline) {
  throw_if_aborted();
  if (alone() || grouped_) {
    calls();
    return;
  }
  runtime_.make_current();
  ending_->calls.fetch_add(1);  // the group counts as one call; end_group() is called even after an abort
  const auto end = [this] {
    grouped_ = false;
    const std::lock_guard lock(owners_call_);
    const Result result = api_->end_group();
    ending_->calls.fetch_sub(1);
    return result;
  };
  static_cast<void>(api_->begin_group());
  grouped_ = true;
  try {
    calls();
  } catch (...) {
    static_cast<void>(end());
    throw;
  }
  wait_for_call(end(), name, deadline);
}

void Plane::complete(std::string_view what, Deadline deadline) {
  const std::string status = doing(std::string(what));
  runtime_.synchronize(stream_.view(), deadline, status, [&] {
    check();
    hear_peers(status);
  });
}

std::string Plane::description() const {
  if (alone()) return "none";
  std::string text = "nccl " + api_->version().text();
  text += !options_.register_memory ? ", memory not registered"
          : unregistered_.empty()   ? ", memory registered"
                                    : fmt::format(", memory not registered ({})", unregistered_);
  if (options_.max_ctas > 0) text += fmt::format(", at most {} CTAs", options_.max_ctas);
  return text;
}

void Plane::check() {
  throw_if_aborted();
  const std::unique_lock look(owners_call_, std::try_to_lock);
  if (!look.owns_lock()) return;  // the next look will do
  const Result result = state();
  if (result.status == Status::kFailed) refuse(result, "communication failed");
}

}  // namespace hvd::comm::nccl

namespace hvd::comm {

std::string here_of(const Topology& where, const gpu::GpuRuntime& runtime) {
  return fmt::format("rank {} (host {}, {})", where.rank, where.hosts.at(static_cast<std::size_t>(where.rank)),
                     runtime.label());
}

std::unique_ptr<DeviceCommunicator> make_nccl(std::shared_ptr<Communicator> host, gpu::GpuRuntime& runtime,
                                              std::shared_ptr<nccl::Api> api, const NcclOptions& options,
                                              Deadline deadline) {
  try {
    nccl::check_world(*host, runtime, api.get(), options, deadline);
  } catch (const Error& error) {
    // Only this rank may have noticed these two; all ranks find the others.
    if (error.code() == Errc::kPeerLost || error.code() == Errc::kTimeout) host->control().abort(error.what());
    throw;
  }
  auto group = std::make_unique<DeviceCommunicator>("nccl", std::move(host), runtime, api.get());
  const std::string here = here_of(group->topology(), runtime);
  try {
    group->set_plane(std::make_unique<nccl::Plane>(group->host(), runtime, std::move(api), options, here, deadline));
  } catch (const std::exception& error) {
    group->control().abort(error.what());  // does nothing if this rank or a peer has told the reason already
    throw;
  }
  return group;
}

}  // namespace hvd::comm
