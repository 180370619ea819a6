// Like UCX, this library installs a handler for SIGHUP when it is loaded, before main().
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string_view>

namespace {

void say(int /*number*/) {
  constexpr std::string_view kText = "SIGHUP reached the library\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kText.data(), kText.size());
}

[[gnu::constructor]] void take() { std::signal(SIGHUP, say); }

}  // namespace
