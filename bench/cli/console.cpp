#include "bench/cli/console.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "bench/cli/report.h"
#include "engine/base/error.h"

namespace hvd::bench {
namespace {

using Steady = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kTerminalInterval(200);
constexpr std::chrono::seconds kLogInterval(30);

void put(int descriptor, std::string_view text) noexcept {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written < 0 && errno != EINTR) return;
    if (written > 0) text.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace

void Console::clear_line() {
  if (line_open_) put(STDERR_FILENO, "\r\x1b[K");
  line_open_ = false;
}

void Console::narrate(std::string_view text) {
  if (settings_.quiet) return;
  clear_line();
  put(STDERR_FILENO, text);
}

void Console::show(const Progress& progress) {
  if (settings_.quiet) return;
  const Steady::time_point now = Steady::now();
  const bool new_stage = progress.stage != stage_;
  const auto interval = settings_.terminal ? Steady::duration(kTerminalInterval) : Steady::duration(kLogInterval);
  if (!new_stage && now - last_ < interval) return;
  stage_ = progress.stage;
  last_ = now;
  if (settings_.terminal) {
    put(STDERR_FILENO, "\r\x1b[K" + progress_text(progress));
    line_open_ = true;
  } else {
    put(STDERR_FILENO, "  " + progress_text(progress) + "\n");
  }
}

void Console::print(std::string_view text) {
  clear_line();
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (!written) {
    throw Error(Errc::kIo, std::string("standard output cannot be written (") + std::strerror(errno) + ")");
  }
}

void Console::warn(std::string_view text) {
  clear_line();
  put(STDERR_FILENO, "hvd_bench: warning: " + std::string(text) + "\n");
}

void say_error(std::string_view text) noexcept {
  try {
    std::string line = "hvd_bench: error: " + std::string(text);
    // What the user gave may hold anything: one line, and no escape sequences for the terminal.
    std::replace_if(
        line.begin(), line.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, ' ');
    put(STDERR_FILENO, line + "\n");
  } catch (...) {  // out of memory: say it in pieces
    put(STDERR_FILENO, "hvd_bench: error: ");
    put(STDERR_FILENO, text);
    put(STDERR_FILENO, "\n");
  }
}

}  // namespace hvd::bench
