#include "bench/cli/console.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "bench/cli/report.h"
#include "engine/base/error.h"
#include "engine/base/files.h"
#include "engine/base/json.h"

namespace hvd::bench {
namespace {

using Steady = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kTerminalInterval(200);
constexpr std::chrono::seconds kLogInterval(30);

void require_written(int error) {
  if (error != 0) throw Error(Errc::kIo, fmt::format("standard output cannot be written ({})", std::strerror(error)));
}

/// Makes standard output another name of what `descriptor` is.
void redirect_stdout(int descriptor) noexcept {
  std::fflush(stdout);
  ::dup2(descriptor, STDOUT_FILENO);
}

std::string escape(char32_t code) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  const bool short_form = code < 0x20;  // other characters get the form of JSON: "\\u" and four digits
  std::string out = short_form ? "\\x" : "\\u";
  for (int shift = short_form ? 4 : 12; shift >= 0; shift -= 4) out += kDigits[(code >> shift) & 0xf];
  return out;
}

/// Returns true for control characters (C0, DEL, C1) and for format characters that no terminal shows.
bool is_hidden(char32_t code) {
  return code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x61c || (code >= 0x200b && code <= 0x200f) ||
         (code >= 0x2028 && code <= 0x202e) || (code >= 0x2060 && code <= 0x206f) || code == 0xfeff;
}

void say_as(std::string_view what, std::string_view text) noexcept {
  try {
    write_all(STDERR_FILENO, fmt::format("{}{}\n", what, printable(text)));
  } catch (...) {
    write_all(STDERR_FILENO, "hvd_bench: error: out of memory, also for saying what went wrong\n");
  }
}

/// Makes each line of the text printable and keeps the newlines.
std::string layout(std::string_view text) {
  std::string out;
  for (std::size_t end = 0; (end = text.find('\n')) != std::string_view::npos; text.remove_prefix(end + 1)) {
    out += printable(text.substr(0, end)) + "\n";
  }
  return out + printable(text);
}

}  // namespace

std::string printable(std::string_view text) {
  const std::string valid = well_formed_utf8(text);
  const auto byte = [&](std::size_t at) { return static_cast<char32_t>(static_cast<unsigned char>(valid[at])); };
  std::string out;
  for (std::size_t at = 0, length = 0; at < valid.size(); at += length) {
    const char32_t lead = byte(at);
    length = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    char32_t code = lead;
    if (length == 2) code = ((lead & 0x1f) << 6) | (byte(at + 1) & 0x3f);
    if (length == 3) code = ((lead & 0xf) << 12) | ((byte(at + 1) & 0x3f) << 6) | (byte(at + 2) & 0x3f);
    if (length == 4 || !is_hidden(code)) {
      out.append(valid, at, length);
    } else {
      out += code == '\n' ? "\\n" : code == '\t' ? "\\t" : escape(code);
    }
  }
  return out;
}

Console::Console(Settings settings) : settings_(settings), results_(STDOUT_FILENO) {
  if (!settings_.results_only) return;
  const int copy = ::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  if (copy < 0) return;
  results_ = copy;
  redirect_stdout(STDERR_FILENO);
}

Console::~Console() {
  if (results_ == STDOUT_FILENO) return;
  redirect_stdout(results_);
  ::close(results_);
}

void Console::clear_line() {
  if (line_open_) write_all(STDERR_FILENO, "\r\x1b[K");
  line_open_ = false;
}

void Console::narrate(std::string_view text) {
  if (settings_.quiet) return;
  clear_line();
  write_all(STDERR_FILENO, layout(text));
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
    write_all(STDERR_FILENO, "\r\x1b[K" + printable(progress_text(progress)));
    line_open_ = true;
  } else {
    write_all(STDERR_FILENO, fmt::format("  {}\n", printable(progress_text(progress))));
  }
}

void Console::print(std::string_view text) {
  clear_line();
  require_written(write_all(results_, layout(text)));
}

void Console::answer(std::string_view text) {
  const int error = write_all(results_, layout(text));
  require_written(error == EPIPE ? 0 : error);
}

void Console::warn(std::string_view text) {
  clear_line();
  say_warning(text);
}

void say_warning(std::string_view text) noexcept { say_as("hvd_bench: warning: ", text); }

void say_error(std::string_view text) noexcept { say_as("hvd_bench: error: ", text); }

void occupy_standard_descriptors() {
  while (true) {
    const int descriptor = ::open("/dev/null", O_RDONLY);  // read-only, so that writing to a closed stdout still fails
    if (descriptor < 0) return;
    if (descriptor > STDERR_FILENO) {
      ::close(descriptor);
      return;
    }
  }
}

}  // namespace hvd::bench
