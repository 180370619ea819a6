#include "engine/gpu/runtime.h"

#include <algorithm>
#include <thread>

#include "engine/base/error.h"

namespace hvd::gpu {
namespace {

using namespace std::chrono_literals;

/// A look at an event costs a microsecond or two, a nap some 60 us (timer slack) whatever one asks for. Work that takes
/// longer than the first looks is waited for asleep: the cores belong to whoever feeds the GPU.
constexpr auto kFirstLooks = 50us;
constexpr auto kShortNap = 20us;
constexpr auto kLongNap = 500us;

template <class View>
void wait_until_finished(Runtime& runtime, View view, Deadline deadline, std::string_view what,
                         const std::function<void()>& between) {
  const auto begin = Clock::now();
  auto nap = std::chrono::microseconds(kShortNap);
  while (!runtime.finished(view)) {
    if (between) between();
    if (deadline.passed()) {
      const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
      throw Error(Errc::kTimeout, runtime.label() + ": " + std::string(what) + " is not over after " +
                                      std::to_string(seconds) + " s: a kernel hangs, or waits for a peer that is gone");
    }
    if (Clock::now() - begin < kFirstLooks) continue;
    std::this_thread::sleep_for(nap);
    nap = std::min<std::chrono::microseconds>(nap * 2, kLongNap);
  }
}

}  // namespace

std::string Runtime::label() const { return "GPU " + std::to_string(device().index) + " (" + device().name + ")"; }

void Runtime::synchronize(EventView event, Deadline deadline, std::string_view what,
                          const std::function<void()>& between) {
  wait_until_finished(*this, event, deadline, what, between);
}

void Runtime::synchronize(StreamView stream, Deadline deadline, std::string_view what,
                          const std::function<void()>& between) {
  wait_until_finished(*this, stream, deadline, what, between);
}

}  // namespace hvd::gpu
