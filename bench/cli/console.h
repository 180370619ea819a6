// Standard output and standard error of rank 0. Results go to standard output, everything on the way there to
// standard error, so that a pipe gets results only. Used by one thread at a time; the forced end after a signal
// (main.cpp) is the one exception, and writes its line with say_error() alone.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "bench/session.h"

namespace hvd::bench {

class Console {
 public:
  struct Settings {
    bool quiet = false;     ///< nothing but results and errors
    bool terminal = false;  ///< standard error is one: the progress line is rewritten in place
  };
  explicit Console(Settings settings) : settings_(settings) {}

  /// Of the session, on standard error.
  void narrate(std::string_view text);
  /// At most a few times a second on a terminal, else when the stage changes and every half minute.
  void show(const Progress& progress);
  /// On standard output. Errors: io when it cannot be written.
  void print(std::string_view text);
  void warn(std::string_view text);

 private:
  void clear_line();

  Settings settings_;
  bool line_open_ = false;
  std::string stage_;
  std::chrono::steady_clock::time_point last_{};
};

/// Returns `text` as one printable line. Control characters, hidden characters and direction marks become escapes
/// (\x1b, \n, \u202e); invalid UTF-8 becomes U+FFFD. Console and say_error() do this to all that they print. Console
/// keeps newlines, so call this for each stored value that goes into a text of several lines.
std::string printable(std::string_view text);

/// "hvd_bench: error: ..." as one write, so that lines of several ranks do not mix. Any thread.
void say_error(std::string_view text) noexcept;
/// The same for a warning from another thread than the Console's.
void say_warning(std::string_view text) noexcept;

/// Opens /dev/null for those of the descriptors 0 to 2 that the parent closed: they would be given to the next files
/// that are opened, and what is meant for the terminal would go into them.
void occupy_standard_descriptors();

}  // namespace hvd::bench
