#include "engine/runtime/device_watch.h"

#include <utility>

#include "engine/base/error.h"

namespace hvd {

DeviceWatch::DeviceWatch(comm::DeviceCommunicator& communicator, std::chrono::milliseconds deadline)
    : communicator_(communicator), runtime_(communicator.runtime()), deadline_(deadline) {
  events_.begin = runtime_.make_event(gpu::Timing::kOn);
  events_.end = runtime_.make_event(gpu::Timing::kOn);
  events_.backward_end = runtime_.make_event(gpu::Timing::kOn);
  events_.joined = runtime_.make_event(gpu::Timing::kOn);
  events_.all_reduced = runtime_.make_event(gpu::Timing::kOff);
}

void DeviceWatch::configure(std::vector<std::string> titles, std::size_t gradients) {
  titles_ = std::move(titles);
  events_.buckets.clear();
  for (std::size_t i = 0; i < titles_.size(); ++i) {
    events_.buckets.push_back({runtime_.make_event(gpu::Timing::kOff), runtime_.make_event(gpu::Timing::kOn),
                               runtime_.make_event(gpu::Timing::kOn)});
  }
  events_.gradients.clear();
  for (std::size_t i = 0; i < gradients; ++i) events_.gradients.push_back(runtime_.make_event(gpu::Timing::kOff));
  const MutexLock lock(mutex_);
  state_.buckets = 0;  // of the last step, in another plan
}

void DeviceWatch::begin(std::uint64_t step, std::size_t buckets) {
  const MutexLock lock(mutex_);
  state_ = {.begun = true, .active = true, .enqueued = false, .step = step, .buckets = buckets, .since = Clock::now()};
}

void DeviceWatch::enqueued() {
  const MutexLock lock(mutex_);
  state_.enqueued = true;
}

void DeviceWatch::finished() {
  const MutexLock lock(mutex_);
  state_.active = false;
}

bool DeviceWatch::active() {
  const MutexLock lock(mutex_);
  return state_.active;
}

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
  runtime_.wait(communicator_.device().stream(), events_.gradients[gradient]);
}

void DeviceWatch::look() {
  const State now = state();
  try {
    communicator_.device().check();
  } catch (const Error& error) {
    if (!now.begun) throw;
    throw Error(error.code(), std::string(error.what()) + "; " + in_flight(now, done_as_far_as_known(now)));
  }
  if (!now.active || Clock::now() - now.since < deadline_) return;
  if (now.enqueued && runtime_.finished(events_.end)) return;  // it is the host that has not come back
  throw Error(Errc::kTimeout, here() + ": " + in_flight(now, done_as_far_as_known(now)) + " after " +
                                  std::to_string(deadline_.count()) + " ms");
}

std::size_t DeviceWatch::done_as_far_as_known(const State& state) noexcept {
  if (!state.enqueued) return 0;  // the events still tell of the step before
  std::size_t count = 0;
  try {
    while (count < state.buckets && runtime_.finished(events_.buckets[count].done)) ++count;
  } catch (...) {  // the GPU has failed: nothing more is known
  }
  return count;
}

std::string DeviceWatch::in_flight(const State& state, std::size_t done) const {
  std::string text = "step " + std::to_string(state.step);
  if (!state.active) return "after " + text + ", nothing in flight on its GPU";
  if (!state.enqueued) return text + " is still being enqueued";
  text += " is in flight on the GPU";
  if (state.buckets == 0) return text;
  if (done == state.buckets) return text + ", all its buckets reduced";
  return text + ", in or before " + titles_[done] + " (" + std::to_string(done) + " of " +
         std::to_string(state.buckets) + " reduced)";
}

std::optional<RankStatus> DeviceWatch::status() {
  const State now = state();
  if (!now.begun) return std::nullopt;
  RankStatus status;
  status.step = now.step + 1;
  if (!now.active) {
    status.moved = now.buckets;
    status.activity = in_flight(now, now.buckets);
    return status;
  }
  status.waits = now.enqueued;
  status.moved = done_as_far_as_known(now);
  status.activity = in_flight(now, status.moved);
  return status;
}

void DeviceWatch::failed() noexcept { communicator_.device().abort(); }

}  // namespace hvd
