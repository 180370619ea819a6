#include "engine/runtime/device_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/base/error.h"

namespace hvd {

DeviceWatch::DeviceWatch(comm::DeviceCommunicator& communicator, Patience deadline, StuckRank stuck)
    : communicator_(communicator), runtime_(communicator.runtime()), deadline_(deadline), stuck_(std::move(stuck)) {
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
  state_.flights[0].buckets = 0;  // the last step's number of buckets belongs to the old plan
}

void DeviceWatch::begin(const Step& step) {
  const MutexLock lock(mutex_);
  state_.begun = true;
  state_.flights.at(state_.in_flight++) = {step, false, Clock::now()};
}

void DeviceWatch::enqueued() {
  const MutexLock lock(mutex_);
  state_.flights.at(state_.in_flight - 1).enqueued = true;
}

void DeviceWatch::finished() {
  const MutexLock lock(mutex_);
  changed_.notify_all();
  if (--state_.in_flight == 0) return;
  std::shift_left(state_.flights.begin(), state_.flights.end(), 1);
  state_.flights[0].since = Clock::now();
}

void DeviceWatch::gave_up() {
  const MutexLock lock(mutex_);
  state_.in_flight = 0;
  changed_.notify_all();
}

DeviceWatch::State DeviceWatch::state() {
  const MutexLock lock(mutex_);
  return state_;
}

std::string DeviceWatch::here() const { return comm::here_of(communicator_.topology(), runtime_); }

void DeviceWatch::before_gradient(std::size_t gradient) {
  runtime_.wait(communicator_.device().stream(), gradients_[gradient]);
}

void DeviceWatch::look() {
  const State now = state();
  try {
    communicator_.device().check();
  } catch (const Error& error) {
    if (!now.begun) throw;
    throw Error(error.code(), fmt::format("{}; {}", error.what(), in_flight(now)));
  }
  if (!now.active()) return;
  StepInFlight flight = current(now);
  if (flight.step != now.flights[0].step) {  // the previous step has just ended, which started `flight`
    if (behind_ != flight.step) behind_since_ = Clock::now();
    behind_ = flight.step;
    flight.since = behind_since_;
  }
  if (Clock::now() - flight.since < deadline_.timeout) return;
  // The GPU has finished the step, but the host has not noticed yet: this is not a timeout of the GPU.
  if (flight.enqueued && runtime_.finished(events(flight.slot).end)) return;
  throw Error(Errc::kTimeout, fmt::format("{}: {} after {} ms ({})", here(), in_flight(now), deadline_.timeout.count(),
                                          deadline_.set_by));
}

bool DeviceWatch::finished_on_gpu(const StepInFlight& flight) noexcept {
  try {
    return flight.enqueued && runtime_.finished(events(flight.slot).end);
  } catch (...) {  // the GPU has failed: its progress is unknown
    return false;
  }
}

DeviceWatch::StepInFlight DeviceWatch::current(const State& state) noexcept {
  std::size_t i = 0;
  while (i + 1 < state.in_flight && finished_on_gpu(state.flights[i])) ++i;
  return state.flights[i];
}

std::size_t DeviceWatch::done_as_far_as_known(const StepInFlight& flight) noexcept {
  if (!flight.enqueued) return 0;  // the events were last recorded by an earlier step
  std::size_t count = 0;
  try {
    while (count < flight.buckets && runtime_.finished(events(flight.slot).buckets[count].done)) ++count;
  } catch (...) {  // the GPU has failed: its further progress is unknown
  }
  return count;
}

std::string DeviceWatch::in_flight(const State& state) {
  const StepInFlight flight = current(state);
  std::string text = "step " + std::to_string(flight.step);
  if (!state.active()) return fmt::format("after {}, nothing in flight on its GPU", text);
  if (!flight.enqueued) return text + " is still being enqueued";
  if (finished_on_gpu(flight)) return text + " has finished on its GPU, but the training thread has not continued";
  text += " is in flight on the GPU";
  if (flight.buckets == 0) return text;
  const std::size_t done = done_as_far_as_known(flight);
  if (done == flight.buckets) return text + ", all its buckets reduced";
  return fmt::format("{}, in or before {} ({} of {} reduced)", text, titles_[done], done, flight.buckets);
}

std::optional<RankStatus> DeviceWatch::status() {
  const State now = state();
  if (!now.begun) return std::nullopt;
  const StepInFlight flight = current(now);
  RankStatus status;
  status.step = flight.step + 1;
  status.activity = in_flight(now);
  status.moved = now.active() ? done_as_far_as_known(flight) : flight.buckets;
  status.waits = now.active() && flight.enqueued && !finished_on_gpu(flight);
  return status;
}

/// The abort ends the training thread's wait. The training thread then destroys its graphs; NCCL returns from the abort
/// only after that. If the training thread does not leave the step in time, this function calls stuck_.leave().
void DeviceWatch::failed(const Error& why) noexcept {
  communicator_.device().abort();
  if (!stuck_.leave) return;
  {
    const MutexLock lock(mutex_);
    for (const Deadline patience = Deadline::after(stuck_.patience); state_.active();) {
      if (!changed_.wait_until(mutex_, patience.when()) && patience.passed()) break;
    }
    if (!state_.active()) return;
  }
  try {
    stuck_.leave(why);
  } catch (...) {  // NOLINT(bugprone-empty-catch): nothing else can end the process
  }
}

}  // namespace hvd
