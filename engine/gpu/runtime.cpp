#include "engine/gpu/runtime.h"

#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "engine/base/error.h"
#include "engine/gpu/device.h"
#include "engine/gpu/poll_schedule.h"

namespace hvd::gpu {
namespace {

// Turns 1000 * major + 10 * minor into "major.minor", for example "13.0".
std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

constexpr std::chrono::seconds kDrainTimeout(5);  // drain() gives up then, because the work may wait for a lost peer

template <class View>
void wait_until_finished(GpuRuntime& runtime, View view, Deadline deadline, std::string_view what,
                         const std::function<void()>& between, std::optional<Clock::time_point> expected) {
  const auto begin = Clock::now();
  PollSchedule poll_schedule(begin, expected);
  while (!runtime.finished(view)) {
    if (between) between();
    if (deadline.passed()) {
      const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
      throw Error(Errc::kTimeout, fmt::format("{}: {} did not finish within {:f} s: a kernel hangs or waits for a lost "
                                              "peer; find out which, or raise {}",
                                              runtime.label(), what, seconds, deadline.set_by()));
    }
    if (const auto nap = poll_schedule.next_sleep(Clock::now()); nap.count() > 0) {
      std::this_thread::sleep_for(nap);
    } else {
      std::this_thread::yield();
    }
  }
}

}  // namespace

std::string no_device_reason(int driver_version, int runtime_version, const std::string& words) {
  if (driver_version == 0) {
    return fmt::format(
        "no NVIDIA driver is loaded (CUDA {} needs one; a container gets the host's by --gpus all or --nv)",
        version_text(runtime_version));
  }
  if (driver_version / 1000 < runtime_version / 1000) {
    return fmt::format(
        "the NVIDIA driver supports CUDA {}, but this program needs {}: install a newer driver, or a program built "
        "with an older CUDA",
        version_text(driver_version), version_text(runtime_version));
  }
  return words;
}

std::string GraphShape::text() const {
  const auto counted = [](std::size_t count, const char* singular, const char* plural) {
    return fmt::format("{} {}", count, count == 1 ? singular : plural);
  };
  std::string held;
  const auto add = [&](std::size_t count, const char* singular, const char* plural) {
    if (count > 0) held += (held.empty() ? ": " : ", ") + counted(count, singular, plural);
  };
  add(kernels, "kernel", "kernels");
  if (high_priority > 0) held += fmt::format(" ({} of high priority)", high_priority);
  add(copies, "copy", "copies");
  add(fills, "fill", "fills");
  add(events, "event", "events");
  add(others, "other", "others");
  if (early_edges > 0) held += fmt::format("; {} may start early", early_edges);
  const std::size_t nodes = kernels + copies + fills + events + others;
  return fmt::format("one graph of {}{}{}", counted(nodes, "node", "nodes"), in_a_row && nodes > 1 ? " in a row" : "",
                     held);
}

std::string GpuRuntime::label() const { return fmt::format("GPU {} ({})", device().index, device().name); }

void GpuRuntime::synchronize(EventView event, Deadline deadline, std::string_view what,
                             const std::function<void()>& between, std::optional<Clock::time_point> expected) {
  wait_until_finished(*this, event, deadline, what, between, expected);
}

void GpuRuntime::synchronize(StreamView stream, Deadline deadline, std::string_view what,
                             const std::function<void()>& between) {
  wait_until_finished(*this, stream, deadline, what, between, {});
}

void GpuRuntime::drain(StreamView stream) noexcept {
  try {
    synchronize(stream, Deadline::after(kDrainTimeout), "the remaining work of the stream");
  } catch (...) {  // NOLINT(bugprone-empty-catch): the GPU has failed or hangs; there is no more to wait for
  }
}

}  // namespace hvd::gpu
