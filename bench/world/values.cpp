#include "bench/world/values.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "engine/base/error.h"

namespace hvd::bench {
namespace {

/// Number of edits (insert, delete, replace, swap of neighbours) from one word to the other: optimal string alignment.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1);
  std::vector<std::size_t> above(b.size() + 1);
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(above.begin(), above.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before.swap(above);
    above.swap(row);
  }
  return above[b.size()];
}

[[noreturn]] void refuse(std::string_view where, std::string_view text, const std::string& wanted) {
  throw Error(Errc::kInvalidArgument, fmt::format("{}: '{}' is not {}", where, text, wanted));
}

}  // namespace

std::int64_t parse_integer(std::string_view where, std::string_view text, std::int64_t low, std::int64_t high) {
  std::int64_t value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc() || end != text.data() + text.size() || value < low || value > high) {
    refuse(where, text, fmt::format("a whole number from {} to {}", low, high));
  }
  return value;
}

double parse_number(std::string_view where, std::string_view text, double low, double high) {
  double value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc() || end != text.data() + text.size() || !std::isfinite(value) || value < low ||
      value > high) {
    // Ten digits are enough to print our bounds without an exponent.
    refuse(where, text, fmt::format("a number from {:.10g} to {:.10g}", low, high));
  }
  return value;
}

std::size_t parse_bytes(std::string_view where, std::string_view text) {
  constexpr std::string_view kUnits = "KMGT";
  std::string_view digits = text;
  double unit = 1;
  if (!text.empty()) {
    const char last = static_cast<char>(text.back() & ~0x20);  // upper case
    if (const std::size_t power = kUnits.find(last); power != std::string_view::npos) {
      for (std::size_t i = 0; i <= power; ++i) unit *= 1024;
      digits.remove_suffix(1);
    }
  }
  try {
    return static_cast<std::size_t>(parse_number(where, digits, 0, 0x1p50 / unit) * unit);
  } catch (const Error&) {
    throw Error(Errc::kInvalidArgument,
                fmt::format("{}: '{}' is not a number of bytes such as 4096, 4K, 1.5M or 2G", where, text));
  }
}

std::size_t parse_word(std::string_view where, std::string_view text, const std::vector<std::string>& words) {
  const auto found = std::find(words.begin(), words.end(), text);
  if (found != words.end()) return static_cast<std::size_t>(found - words.begin());
  refuse(where, text, fmt::format("one of {}{}", fmt::join(words, ", "), did_you_mean(text, words)));
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(separator, at), text.size());
    parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string* best = nullptr;
  std::size_t best_distance = std::max<std::size_t>(1, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    if (const std::size_t d = distance(word, candidate); d < best_distance) {
      best_distance = d;
      best = &candidate;
    }
  }
  return best == nullptr ? std::string() : fmt::format(" (did you mean {}?)", *best);
}

}  // namespace hvd::bench
