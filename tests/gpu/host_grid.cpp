#include "tests/gpu/host_grid.h"

#include <ucontext.h>

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

// These functions tell AddressSanitizer which stack is in use. The pointers are null in builds without
// AddressSanitizer.
extern "C" {
[[gnu::weak]] void __sanitizer_start_switch_fiber(void** fake_stack_save, const void* bottom, std::size_t size);
[[gnu::weak]] void __sanitizer_finish_switch_fiber(void* fake_stack_save, const void** old_bottom,
                                                   std::size_t* old_size);
}

namespace hvd::test {
namespace {

/// An execution context: its stack, and its registers while it is suspended.
struct Place {
  ucontext_t context{};
  const void* stack = nullptr;
  std::size_t stack_bytes = 0;
  void* fake_stack = nullptr;  // a value that AddressSanitizer keeps here
};

void leave_for(Place& from, Place& to) {
  if (__sanitizer_start_switch_fiber != nullptr) {
    __sanitizer_start_switch_fiber(&from.fake_stack, to.stack, to.stack_bytes);
  }
  swapcontext(&from.context, &to.context);
}
/// Call this after each switch to `here`. Stores in `whence` the bounds of the stack that the switch left. There is no
/// other way to learn the bounds of the thread's own stack.
void arrived(const Place& here, Place& whence) {
  if (__sanitizer_finish_switch_fiber != nullptr) {
    __sanitizer_finish_switch_fiber(here.fake_stack, &whence.stack, &whence.stack_bytes);
  }
}

struct Fiber {
  static constexpr std::size_t kStackBytes = std::size_t{128} << 10;
  // The memory is not cleared, because a block may need 256 of these stacks.
  std::unique_ptr<std::byte[]> memory{new std::byte[kStackBytes]};
  Place place;
  bool waits = false;  // a CUDA thread in this fiber waits at a barrier
  dim3 thread;         // index of the waiting CUDA thread
  int line = 0;        // source line of the barrier at which it waits
};

/// Runs the threads of a block one after another. One fiber runs threads until a thread waits at a barrier. Then
/// another fiber runs the remaining threads in the same way. A kernel without barriers therefore needs only one fiber.
class Scheduler {
 public:
  ThreadOrder order = ThreadOrder::kUp;

  void run_block(const char* what, unsigned threads, const std::function<void()>& thread) {
    threads_ = threads;
    next_ = 0;
    thread_ = &thread;
    std::vector<Fiber*> waiting;
    while (next_ < threads_) enter(idle_fiber(), waiting);
    while (!waiting.empty()) {
      if (const std::string wrong = misuse(waiting); !wrong.empty()) {
        idle_.clear();
        fibers_.clear();  // also ends the threads that wait in these fibers
        throw std::logic_error(std::string("kernel ") + what + ": " + wrong);
      }
      for (Fiber* fiber : std::exchange(waiting, {})) enter(*fiber, waiting);
    }
  }

  void wait_at(int line) {
    Fiber& fiber = *running_;
    fiber.waits = true;
    fiber.thread = threadIdx;
    fiber.line = line;
    back_from(fiber);
    threadIdx = fiber.thread;
  }

 private:
  [[nodiscard]] std::string misuse(const std::vector<Fiber*>& waiting) const {
    if (waiting.size() != threads_) {
      return std::to_string(waiting.size()) + " of " + std::to_string(threads_) + " threads wait at line " +
             std::to_string(waiting[0]->line) + ", the others have ended";
    }
    for (const Fiber* fiber : waiting) {
      if (fiber->line != waiting[0]->line) {
        return "threads of a block wait at lines " + std::to_string(waiting[0]->line) + " and " +
               std::to_string(fiber->line);
      }
    }
    return {};
  }

  Fiber& idle_fiber() {
    if (idle_.empty()) add_fiber();
    Fiber& fiber = *idle_.back();
    idle_.pop_back();
    return fiber;
  }
  void add_fiber() {
    fibers_.push_back(std::make_unique<Fiber>());
    idle_.push_back(fibers_.back().get());
    Place& place = idle_.back()->place;
    getcontext(&place.context);
    place.stack = place.context.uc_stack.ss_sp = fibers_.back()->memory.get();
    place.stack_bytes = place.context.uc_stack.ss_size = Fiber::kStackBytes;
    makecontext(&place.context, &Scheduler::live, 0);
  }

  void enter(Fiber& fiber, std::vector<Fiber*>& waiting) {
    running_ = &fiber;
    fiber.waits = false;
    leave_for(home_, fiber.place);
    Place ignored;
    arrived(home_, ignored);
    (fiber.waits ? waiting : idle_).push_back(&fiber);
  }
  void back_from(Fiber& fiber) {
    leave_for(fiber.place, home_);
    arrived(fiber.place, home_);
  }

  static void live();
  [[noreturn]] void take_threads() {
    Fiber& fiber = *running_;
    arrived(fiber.place, home_);
    for (;;) {
      while (next_ < threads_) {
        const unsigned number = next_++;
        threadIdx = dim3(order == ThreadOrder::kUp ? number : threads_ - 1 - number, 0, 0);
        (*thread_)();
      }
      back_from(fiber);
    }
  }

  unsigned threads_ = 0, next_ = 0;
  const std::function<void()>* thread_ = nullptr;
  Place home_;
  Fiber* running_ = nullptr;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> idle_;
};

thread_local Scheduler scheduler;

void Scheduler::live() { scheduler.take_threads(); }

}  // namespace

WithThreadOrder::WithThreadOrder(ThreadOrder order) : before_(std::exchange(scheduler.order, order)) {}
WithThreadOrder::~WithThreadOrder() { scheduler.order = before_; }

void run_grid(const char* what, dim3 blocks, unsigned threads, const std::function<void()>& thread) {
  gridDim = blocks;
  blockDim = threads;
  for (unsigned z = 0; z < blocks.z; ++z) {
    for (unsigned y = 0; y < blocks.y; ++y) {
      for (unsigned x = 0; x < blocks.x; ++x) {
        blockIdx = dim3(x, y, z);
        scheduler.run_block(what, threads, thread);
      }
    }
  }
}

void synchronize_threads(int line) { scheduler.wait_at(line); }

}  // namespace hvd::test
