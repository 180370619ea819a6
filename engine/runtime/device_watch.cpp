#include "engine/runtime/device_watch.h"

#include <utility>

#include "engine/base/error.h"

namespace hvd {

DeviceWatch::DeviceWatch(comm::DeviceCommunicator& communicator, std::chrono::milliseconds deadline)
    : communicator_(communicator), runtime_(communicator.runtime()), deadline_(deadline) {
  for (StepEvents& events : events_) {
    for (gpu::Event* event : {&events.begin, &events.end, &events.backward_end, &events.joined}) {
      *event = runtime_.make_event(gpu::Timing::kOn);
    }
    events.all_reduced = runtime_.make_event(gpu::Timing::kOff);
  }
}

void DeviceWatch::configure(std::vector<std::string> titles, std::size_t gradients) {
  titles_ = std::move(titles);
  for (StepEvents& events : events_) {
    events.buckets.clear();
    for (std::size_t i = 0; i < titles_.size(); ++i) {
      events.buckets.push_back({runtime_.make_event(gpu::Timing::kOff), runtime_.make_event(gpu::Timing::kOn),
                                runtime_.make_event(gpu::Timing::kOn)});
    }
  }
  gradients_.clear();
  for (std::size_t i = 0; i < gradients; ++i) gradients_.push_back(runtime_.make_event(gpu::Timing::kOff));
  const MutexLock lock(mutex_);
  state_.oldest.buckets = 0;  // of the last step, in another plan
}

void DeviceWatch::begin(std::uint64_t step, std::size_t slot, std::size_t buckets) {
  const MutexLock lock(mutex_);
  state_.begun = true;
  state_.newest = {.enqueued = false, .step = step, .slot = slot, .buckets = buckets, .since = Clock::now()};
  if (!state_.active()) state_.oldest = state_.newest;
  ++state_.flights;
}

void DeviceWatch::enqueued() {
  const MutexLock lock(mutex_);
  state_.newest.enqueued = true;
  if (state_.flights == 1) state_.oldest = state_.newest;
}

void DeviceWatch::finished() {
  const MutexLock lock(mutex_);
  if (--state_.flights == 0) return;
  state_.newest.since = Clock::now();
  state_.oldest = state_.newest;
}

void DeviceWatch::gave_up() {
  const MutexLock lock(mutex_);
  state_.flights = 0;
}

bool DeviceWatch::active() { return state().active(); }

DeviceWatch::State DeviceWatch::state() {
  const MutexLock lock(mutex_);
  return state_;
}

std::string DeviceWatch::here() const {
  const comm::Topology& where = communicator_.topology();
  return "rank " + std::to_string(where.rank) + " (host " + where.hosts.at(static_cast<std::size_t>(where.rank)) +
         ", " + runtime_.label() + ")";
}

void DeviceWatch::before_gradient(std::size_t gradient) {
  runtime_.wait(communicator_.device().stream(), gradients_[gradient]);
}

void DeviceWatch::look() {
  const State now = state();
  try {
    communicator_.device().check();
  } catch (const Error& error) {
    if (!now.begun) throw;
    throw Error(error.code(), std::string(error.what()) + "; " + in_flight(now, done_as_far_as_known(now)));
  }
  if (!now.active() || Clock::now() - now.oldest.since < deadline_) return;
  if (over(now.oldest)) return;  // it is the host that has not come back
  throw Error(Errc::kTimeout, here() + ": " + in_flight(now, done_as_far_as_known(now)) + " after " +
                                  std::to_string(deadline_.count()) + " ms");
}

bool DeviceWatch::over(const Flight& flight) { return flight.enqueued && runtime_.finished(events(flight.slot).end); }

std::size_t DeviceWatch::done_as_far_as_known(const State& state) noexcept {
  const Flight& oldest = state.oldest;
  if (!oldest.enqueued) return 0;  // the events still tell of an earlier step
  const StepEvents& events = this->events(oldest.slot);
  std::size_t count = 0;
  try {
    while (count < oldest.buckets && runtime_.finished(events.buckets[count].done)) ++count;
  } catch (...) {  // the GPU has failed: nothing more is known
  }
  return count;
}

std::string DeviceWatch::in_flight(const State& state, std::size_t done) const {
  const Flight& oldest = state.oldest;
  std::string text = "step " + std::to_string(oldest.step);
  if (!state.active()) return "after " + text + ", nothing in flight on its GPU";
  if (!oldest.enqueued) return text + " is still being enqueued";
  text += " is in flight on the GPU";
  if (oldest.buckets == 0) return text;
  if (done == oldest.buckets) return text + ", all its buckets reduced";
  return text + ", in or before " + titles_[done] + " (" + std::to_string(done) + " of " +
         std::to_string(oldest.buckets) + " reduced)";
}

std::optional<RankStatus> DeviceWatch::status() {
  const State now = state();
  if (!now.begun) return std::nullopt;
  RankStatus status;
  status.step = now.oldest.step + 1;
  if (!now.active()) {
    status.moved = now.oldest.buckets;
    status.activity = in_flight(now, now.oldest.buckets);
    return status;
  }
  status.waits = now.oldest.enqueued;
  status.moved = done_as_far_as_known(now);
  status.activity = in_flight(now, status.moved);
  return status;
}

void DeviceWatch::failed() noexcept { communicator_.device().abort(); }

}  // namespace hvd
