// A fault for tests: once the file named by HVD_TEST_HANG exists, nanosleep() never returns on the main thread. The
// steps of a replay sleep in nanosleep(), so the file makes a step that never ends.
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <ctime>

extern "C" int nanosleep(const timespec* requested, timespec* remaining) {
  const char* const file = std::getenv("HVD_TEST_HANG");
  while (file != nullptr && ::gettid() == ::getpid() && ::access(file, F_OK) == 0) ::pause();
  errno = ::clock_nanosleep(CLOCK_MONOTONIC, 0, requested, remaining);
  return errno == 0 ? 0 : -1;
}
