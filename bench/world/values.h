// Converts text to values for options and environment variables. Errors say what was given, where, and what is allowed.
// Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hvd::bench {

/// Parses a whole number in [low, high]. `where` is the option or variable, e.g. "--batch-size".
/// Errors: invalid_argument.
std::int64_t parse_integer(std::string_view where, std::string_view text, std::int64_t low, std::int64_t high);

/// Parses a finite decimal number in [low, high]. Errors: invalid_argument.
double parse_number(std::string_view where, std::string_view text, double low, double high);

/// Parses bytes such as "4096", "4K", "1.5M" or "2G". As in nccl-tests, the units are binary. Errors: invalid_argument.
std::size_t parse_bytes(std::string_view where, std::string_view text);

/// Returns the parts of `text` between separators.
std::vector<std::string> split(const std::string& text, char separator);

/// Finds `text` in `words` and returns its index. Errors: invalid_argument; its text lists the words.
std::size_t parse_word(std::string_view where, std::string_view text, const std::vector<std::string>& words);

/// Returns " (did you mean X?)" for the candidate nearest to `word`, or "" if none is near.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace hvd::bench
