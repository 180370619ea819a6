// Defines what g++ 12's static libstdc++ wants of the C library and glibc 2.31 lacks. Only the wheel's program has this
// file.
#include <sys/random.h>

#include <cstdint>
#include <cstdlib>

extern "C" {

/// True if the process has one thread: libstdc++ then counts references without atomic instructions. Always false here.
__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;

/// What std::random_device reads. As glibc's own, it ends the process if the kernel gives no random bytes.
__attribute__((visibility("hidden"))) std::uint32_t arc4random() {
  std::uint32_t value = 0;
  if (::getrandom(&value, sizeof value, 0) != sizeof value) std::abort();
  return value;
}
}
