#include "engine/comm/mpi/transport.h"

#include <sys/prctl.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "engine/base/error.h"
#include "engine/comm/chunks.h"
#include "engine/comm/mpi/environment.h"

namespace hvd::comm {
namespace {

using namespace std::chrono_literals;

constexpr int kTag = 1;
/// Longest piece of a message: MPI counts are int, and a power of two keeps the pieces aligned.
constexpr std::size_t kMaxCount = std::size_t{1} << 30;
static_assert(kMaxCount <= INT_MAX);

constexpr auto kSpin = 10us;
constexpr auto kFirstNap = 5us;
constexpr auto kLongNap = 200us;
/// A rank that has waited longer than 50 ms sleeps for 1/256 of that time between polls, because each poll goes through
/// all of MPI's connections. The rank then notices the message late by at most 1/256 of its wait. If ranks share
/// processors, the rank sleeps for 1/16 of that time instead, because polls take processor time from the awaited rank.
constexpr std::int64_t kNapShare = 256;
constexpr std::int64_t kCrowdedNapShare = 16;
constexpr auto kMaxNap = 5ms;
/// Time between two checks of notices and the deadline. A check calls MPI_Improbe, which takes time.
constexpr auto kLookRound = 2ms;

std::optional<HvdMpiType> mpi_type(DataType dtype) {
  switch (dtype) {
    case DataType::kF32: return HVD_MPI_F32;
    case DataType::kF64: return HVD_MPI_F64;
    case DataType::kI32: return HVD_MPI_I32;
    case DataType::kI64: return HVD_MPI_I64;
    case DataType::kU8: return HVD_MPI_U8;
    case DataType::kI8: return HVD_MPI_I8;
    case DataType::kI16: return HVD_MPI_I16;
    case DataType::kF16:
    case DataType::kBF16: return std::nullopt;
  }
  return std::nullopt;
}

HvdMpiOp mpi_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage: return HVD_MPI_SUM;
    case ReduceOp::kMin: return HVD_MPI_MIN;
    case ReduceOp::kMax: return HVD_MPI_MAX;
    case ReduceOp::kProduct: return HVD_MPI_PRODUCT;
  }
  return HVD_MPI_SUM;
}

/// Sets the timer slack of this thread to its minimum: sleeps of a few microseconds need less than the default of 50
/// us. The destructor restores the old value, because the thread belongs to the caller.
/// Source: prctl(2), PR_SET_TIMERSLACK.
class FineTimer {
 public:
  FineTimer() : before_(prctl(PR_GET_TIMERSLACK)) { prctl(PR_SET_TIMERSLACK, 1UL); }
  ~FineTimer() {
    if (before_ > 0) prctl(PR_SET_TIMERSLACK, static_cast<unsigned long>(before_));
  }
  FineTimer(const FineTimer&) = delete;
  FineTimer& operator=(const FineTimer&) = delete;

 private:
  int before_;
};

}  // namespace

MpiTransport::MpiTransport(std::shared_ptr<MpiEnvironment> environment, MpiComm data, MpiComm notices, Faults& faults,
                           bool crowded, std::size_t eager_bytes)
    : environment_(std::move(environment)),
      data_(std::move(data)),
      notices_(std::move(notices)),
      faults_(faults),
      crowded_(crowded),
      eager_bytes_(eager_bytes),
      mutex_(environment_->calls()) {}

MpiTransport::~MpiTransport() {
  const MutexLock lock(mutex_);
  if (environment_->abandoned()) {
    // Freeing a communicator is collective and would wait for a lost peer. The leak is harmless: the process ends soon.
    static_cast<void>(data_.release());
    static_cast<void>(notices_.release());
    static_cast<void>(outgoing_.release());  // leaked on purpose: MPI may still read these buffers
    return;
  }
  for (Outgoing& message : *outgoing_) {
    mpi_.wait(&message.request);
  }
  data_.reset();  // this needs the mutex, because other engines of this process may call MPI
  notices_.reset();
}

Transport::Ticket MpiTransport::open(PostedRequest operation) {
  const Ticket ticket = next_++;
  operations_.emplace(ticket, std::move(operation));
  return ticket;
}

Transport::Ticket MpiTransport::send(int to, std::span<const std::byte> bytes) {
  PostedRequest operation{to, {}};
  const MutexLock lock(mutex_);
  for_each_chunk(bytes.size(), kMaxCount, [&](Range piece) {
    check(mpi_.begin_send(bytes.data() + piece.begin, piece.count, to, kTag, data_.get(),
                          &operation.requests.emplace_back(mpi_.request_null)),
          "MPI_Isend");
  });
  return open(std::move(operation));
}

Transport::Ticket MpiTransport::receive(int from, std::span<std::byte> bytes) {
  PostedRequest operation{from, {}};
  const MutexLock lock(mutex_);
  for_each_chunk(bytes.size(), kMaxCount, [&](Range piece) {
    check(mpi_.begin_receive(bytes.data() + piece.begin, piece.count, from, kTag, data_.get(),
                             &operation.requests.emplace_back(mpi_.request_null)),
          "MPI_Irecv");
  });
  return open(std::move(operation));
}

bool MpiTransport::test_locked(PostedRequest& operation) {
  // Test the requests one by one, because MPI_Testall returns MPI_ERR_IN_STATUS for every error.
  for (HvdMpiHandle& request : operation.requests) {
    int done = 0;
    check(mpi_.test(&request, &done), "MPI_Test");
    if (done == 0) return false;
  }
  return true;
}

bool MpiTransport::test(Ticket ticket) {
  const auto found = operations_.find(ticket);
  if (found == operations_.end()) return true;
  {
    const MutexLock lock(mutex_);
    if (!test_locked(found->second)) return false;
  }
  operations_.erase(found);
  return true;
}

void MpiTransport::wait(Ticket ticket, const Wait& wait) {
  const auto found = operations_.find(ticket);
  if (found == operations_.end()) return;
  wait_for(found->second, wait);
  operations_.erase(found);
}

void MpiTransport::wait_for(PostedRequest& operation, const Wait& wait) {
  const auto done = [&] {
    const MutexLock lock(mutex_);
    return test_locked(operation);
  };
  try {
    if (done()) return;
    const auto start = Clock::now();
    while (!crowded_ && Clock::now() - start < kSpin) {
      if (done()) return;
    }
    const FineTimer fine_timer;
    auto look = start + kLookRound;
    const std::int64_t share = crowded_ ? kCrowdedNapShare : kNapShare;
    std::chrono::nanoseconds nap = crowded_ ? kLongNap : kFirstNap;
    while (true) {
      std::this_thread::sleep_for(nap);
      if (done()) return;
      const auto now = Clock::now();
      const auto longest = std::clamp<std::chrono::nanoseconds>((now - start) / share, kLongNap, kMaxNap);
      nap = std::min(nap * 5 / 4, longest);
      if (now >= look || faults_.aborted()) {
        look = now + kLookRound;
        faults_.check(wait, operation.peer);
        if (!wait.deadline.passed()) continue;
        const std::array missing{operation.peer};
        faults_.give_up(wait, std::span<const int>(missing).first(operation.peer >= 0 ? 1 : 0), false, "");
      }
    }
  } catch (const Error& error) {
    cancel_all();
    // Only the receiver detects a mismatch.
    if (error.code() == Errc::kMismatch) faults_.abort_for_mismatch(error.what());
    throw;
  } catch (...) {
    cancel_all();
    throw;
  }
}

void MpiTransport::cancel_all() noexcept {
  // After the error the caller may free the buffers of open operations, so no late message may be written to them.
  const MutexLock lock(mutex_);
  for (auto& [ticket, operation] : operations_) {
    for (HvdMpiHandle& request : operation.requests) {
      if (request != mpi_.request_null) mpi_.cancel(&request);
    }
  }
  operations_.clear();
}

void MpiTransport::notify(int to, const Notice& notice) noexcept {
  const MutexLock lock(mutex_);
  for (auto message = outgoing_->begin(); message != outgoing_->end();) {
    int done = 0;
    message = mpi_.test(&message->request, &done) == 0 && done != 0 ? outgoing_->erase(message) : std::next(message);
  }
  Outgoing& next = outgoing_->emplace_back();
  const auto text = std::as_bytes(std::span(notice.text));
  next.bytes.push_back(static_cast<std::byte>(notice.kind));
  next.bytes.insert(next.bytes.end(), text.begin(),
                    text.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(text.size(), 1024)));
  if (mpi_.begin_send(next.bytes.data(), next.bytes.size(), to, kTag, notices_.get(), &next.request) != 0) {
    outgoing_->pop_back();
  }
}

std::optional<Notice> MpiTransport::poll_notice() noexcept {
  const MutexLock lock(mutex_);
  int found = 0;
  HvdMpiHandle message = 0;
  int source = 0;
  std::size_t length = 0;
  if (mpi_.probe(kTag, notices_.get(), &found, &message, &source, &length) != 0 || found == 0 || length == 0) {
    return std::nullopt;
  }
  std::string raw(length, '\0');
  if (mpi_.receive_probed(raw.data(), length, &message) != 0) return std::nullopt;
  return Notice{static_cast<Notice::Kind>(raw.front()), source, raw.substr(1)};
}

bool MpiTransport::library_all_reduce(std::byte* data, std::size_t count, DataType dtype, ReduceOp op,
                                      const Wait& wait) {
  const auto type = mpi_type(dtype);
  if (!type) return false;
  // The call is non-blocking, because a rank could not leave a blocking call if a peer is lost.
  for_each_chunk(count, kMaxCount, [&](Range piece) {
    PostedRequest operation{-1, {mpi_.request_null}};
    {
      const MutexLock lock(mutex_);
      check(mpi_.begin_all_reduce(data + piece.begin * size_of(dtype), piece.count, *type, mpi_op(op), data_.get(),
                                  operation.requests.data()),
            "MPI_Iallreduce");
    }
    wait_for(operation, wait);
  });
  return true;
}

}  // namespace hvd::comm
