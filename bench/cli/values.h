// Text to values for options and environment variables, with errors that say what was given, where, and
// what would be right. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hvd::bench {

/// Whole number in [low, high]. `where` is the option or variable, e.g. "--batch-size".
/// Errors: invalid_argument.
std::int64_t parse_integer(std::string_view where, std::string_view text, std::int64_t low, std::int64_t high);

/// Finite decimal number in [low, high]. Errors: invalid_argument.
double parse_number(std::string_view where, std::string_view text, double low, double high);

/// `text` as one of `words`; returns its index. Errors: invalid_argument that lists the words.
std::size_t parse_word(std::string_view where, std::string_view text, const std::vector<std::string>& words);

/// " (did you mean X?)" for the candidate nearest to `word`, or nothing when none is near.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace hvd::bench
