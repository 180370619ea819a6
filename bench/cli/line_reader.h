// Reads a text for plumbing commands line by line and word by word: words are separated by single spaces, and every
// line ends with a line break. A text may come from a stranger, so everything is checked. Pure; one thread uses a
// LineReader.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>

#include "engine/base/error.h"

namespace hvd::bench {

/// Base of the parsers of texts. Every function's error is invalid_argument with the file and the line.
class LineReader {
 public:
  struct Limits {
    std::size_t lines = 0, numbers = 0;
  };
  /// Begins at the first line. `text` and `origin`, the file, must outlive the reader.
  LineReader(std::string_view text, const std::string& origin, Limits limits)
      : limits_(limits), rest_(text), origin_(origin) {
    next_line();
  }

 protected:
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(Errc::kInvalidArgument, fmt::format("{}:{}: {}", origin_, line_number_, what));
  }
  [[nodiscard]] std::size_t line_number() const { return line_number_; }
  [[nodiscard]] std::string_view line() const { return line_; }
  [[nodiscard]] bool more_words() const { return more_words_; }
  [[nodiscard]] bool at_end_of_text() const { return rest_.empty(); }

  void next_line() {
    ++line_number_;
    const std::size_t end = rest_.find('\n');
    if (end == std::string_view::npos) fail("the text ends here, before the end of its line 'end'; write all of it");
    if (line_number_ > limits_.lines) fail(fmt::format("more than {} lines", limits_.lines));
    line_ = rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
    words_ = line_;
    more_words_ = true;
    possible_.clear();
  }
  void end_line() {
    if (more_words_) fail(fmt::format("'{:.40}' is one word too many", words_.substr(0, words_.find(' '))));
    next_line();
  }

  std::string_view word() {
    if (!more_words_) fail("a word is missing at the end of the line");
    const std::size_t space = words_.find(' ');
    const std::string_view found = words_.substr(0, space);
    more_words_ = space != std::string_view::npos;
    words_.remove_prefix(more_words_ ? space + 1 : words_.size());
    return found;
  }
  /// Takes all that is left of the line, which may hold spaces.
  std::string_view rest_of_line() {
    if (!more_words_) fail("a text is missing at the end of the line");
    more_words_ = false;
    return words_;
  }
  bool at(std::string_view key_here) {
    if (key() == key_here) return true;
    possible_.append(possible_.empty() ? "" : ", ").append(key_here);
    return false;
  }
  /// Takes the first word of the line if it is `key_here`.
  bool take(std::string_view key_here) {
    if (!at(key_here)) return false;
    (void)word();
    return true;
  }
  void expect(std::string_view key_here) {
    if (!take(key_here)) fail(fmt::format("'{:.40}' cannot stand here; possible: {}", key(), possible_));
  }
  template <class Read>
  void line(std::string_view key_here, Read read) {
    expect(key_here);
    read();
    end_line();
  }

  template <class T>
  T number(T low, T high, const char* what) {
    const std::string_view text = word();
    T value{};
    const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool read = result.ec == std::errc() && result.ptr == text.data() + text.size();
    if (!read || !(value >= low && value <= high)) {  // the second condition refuses NaN, too
      fail(fmt::format("'{:.40}' is not a {} from {} to {}", text, what, low, high));
    }
    if (++numbers_ > limits_.numbers) fail(fmt::format("more than {} numbers", limits_.numbers));
    return value;
  }
  std::uint64_t whole(std::uint64_t low, std::uint64_t high) { return number(low, high, "whole number"); }
  double real(double low, double high) { return number(low, high, "number"); }
  /// Returns the element of `values` that the word names.
  template <class T, std::size_t n>
  T choice(const std::array<std::string_view, n>& names, const std::array<T, n>& values) {
    const std::string_view text = word();
    const auto found = std::find(names.begin(), names.end(), text);
    if (found == names.end()) fail(fmt::format("'{:.40}' is none of {}", text, fmt::join(names, ", ")));
    return values.at(static_cast<std::size_t>(found - names.begin()));
  }

 private:
  [[nodiscard]] std::string_view key() const { return line_.substr(0, line_.find(' ')); }

  const Limits limits_;
  std::string_view rest_, line_, words_;  // behind the line; the line; what is unread of it
  bool more_words_ = false;
  const std::string& origin_;
  std::size_t line_number_ = 0, numbers_ = 0;
  std::string possible_;  // first words that could stand in this line
};

}  // namespace hvd::bench
