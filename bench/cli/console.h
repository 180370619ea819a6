// Writes to standard output and standard error on rank 0. Results go to standard output and all other text goes to
// standard error, so that a pipe gets nothing but results. One thread at a time uses a Console. The thread that forces
// an end after a signal (process_end.cpp) therefore calls only say_error().
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "bench/session/session.h"

namespace hvd::bench {

class Console {
 public:
  struct Settings {
    bool quiet = false;     ///< print only results and errors
    bool terminal = false;  ///< standard error is a terminal, on which the progress line is rewritten in place
    /// Only print() writes to standard output while the Console exists. Text that libraries print there, such as NCCL's
    /// log with NCCL_DEBUG=INFO, goes to standard error.
    bool results_only = false;
  };
  explicit Console(Settings settings);
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  /// Prints a message about the session on standard error.
  void narrate(std::string_view text);
  /// On a terminal, rewrites the progress line at most five times a second. Elsewhere, prints a line when the stage
  /// changes and every half minute.
  void show(const Progress& progress);
  /// Prints on standard output. Errors: io if the text cannot be written.
  void print(std::string_view text);
  /// Prints the answer to a question such as --help. Errors: those of print(), but a closed pipe is none: head and less
  /// close it when they have read enough.
  void answer(std::string_view text);
  void warn(std::string_view text);

 private:
  void clear_line();

  Settings settings_;
  int results_;  // descriptor to which print() writes
  bool line_open_ = false;
  std::string stage_;
  std::chrono::steady_clock::time_point last_{};
};

/// Returns `text` as one printable line. Control characters, hidden characters and direction marks become escapes
/// (\x1b, \n, \u202e); invalid UTF-8 becomes U+FFFD. Console and say_error() make all text that they print printable,
/// but Console keeps newlines. Therefore call printable() for each stored value that becomes part of a text of several
/// lines.
std::string printable(std::string_view text);

/// Prints "hvd_bench: error: ..." in one write, so that lines of several ranks do not mix. Any thread may call it.
void say_error(std::string_view text) noexcept;
/// Prints a warning in one write. Any thread may call it.
void say_warning(std::string_view text) noexcept;

/// Opens /dev/null for each of the descriptors 0 to 2 that the parent closed. Otherwise the next opened files would get
/// these descriptors, and text for the terminal would go into those files.
void occupy_standard_descriptors();

}  // namespace hvd::bench
