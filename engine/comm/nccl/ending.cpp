// How a Plane frees its communicator: by ncclCommDestroy, or after an error by ncclCommAbort. Both may never return.
#include <atomic>
#include <latch>
#include <system_error>
#include <thread>
#include <utility>

#include "engine/base/error.h"
#include "engine/comm/nccl/plane.h"

namespace hvd::comm::nccl {
namespace {

using namespace std::chrono_literals;

/// How long the aborting thread waits for the owner's current call to return. The call normally only enqueues. If the
/// call takes longer than this, the call itself is waiting for work that only the abort ends.
constexpr auto kCourtesy = 500ms;

/// Number of communicators of this process that a thread is aborting or destroying. This is the only mutable global,
/// because these threads outlive every owner.
std::atomic<int>& running_frees() {
  static std::atomic<int> count{0};
  return count;
}

}  // namespace

Comm Plane::release_communicator() {
  const MutexLock theirs(ending_->mutex);
  if (comm_.native != nullptr) ending_->freeing = true;
  return std::exchange(comm_, {});
}

template <class Work>
void Plane::free_on_thread(Work work) {
  const auto body = [work = std::move(work), ending = ending_] {
    work();
    running_frees().fetch_sub(1);  // do this before the waiting threads are notified
    const MutexLock lock(ending->mutex);
    ending->freeing = false;
    ending->changed.notify_all();
  };
  running_frees().fetch_add(1);
  try {
    std::thread(body).detach();         // `work` may never return, so no thread joins it
  } catch (const std::system_error&) {  // no thread can be started
    body();
  }
}

void Plane::destroy(Deadline deadline) {
  Comm gone;
  {
    const MutexLock lock(mutex_);
    gone = release_communicator();
  }
  if (gone.native == nullptr) return;
  const auto begun = std::make_shared<std::latch>(1);
  free_on_thread([api = api_, &runtime = runtime_, gone, begun] {
    try {
      runtime.make_current();  // at its end NCCL returns to the thread's device, which would get a context of its own
    } catch (const Error&) {   // NOLINT(bugprone-empty-catch): the GPU has failed; NCCL finds this, too
    }
    begun->count_down();
    static_cast<void>(api->destroy(gone));  // waits, without a deadline, until all peers have closed the communicator
  });
  begun->wait();  // from now on the thread may outlive the GPU's runtime
  wait_for_call({.status = Status::kInProgress}, "ncclCommDestroy", deadline);
}

bool Plane::wait_timed_out() const {
  const MutexLock lock(ending_->mutex);
  return ending_->wait_timed_out;
}

void Plane::abort() noexcept {
  Comm gone;
  {
    const MutexLock lock(mutex_);
    if (aborted_.exchange(true) || comm_.native == nullptr) return;
    gone = release_communicator();
  }
  free_on_thread([api = api_, ending = ending_, gone] {
    for (const Deadline courtesy = Deadline::after(kCourtesy); ending->calls.load() > 0 && !courtesy.passed();) {
      std::this_thread::sleep_for(200us);
    }
    static_cast<void>(api->comm_abort(gone));
  });
}

void Plane::abandon() noexcept {
  abort();
  runtime_.drain(stream_);
}

bool Plane::await_abort(Deadline deadline) noexcept {
  const MutexLock lock(ending_->mutex);
  while (ending_->freeing) {
    if (ending_->changed.wait_until(ending_->mutex, deadline.when()) || !deadline.passed()) continue;
    ending_->wait_timed_out = ending_->freeing;
    break;
  }
  return !ending_->freeing;
}

}  // namespace hvd::comm::nccl

namespace hvd::comm {

int unfinished_aborts() noexcept { return nccl::running_frees().load(); }

}  // namespace hvd::comm
