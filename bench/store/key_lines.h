// Encodes names and values as text to send between ranks, one "name=value" per line. Names contain no '=', and neither
// names nor values contain line breaks. Pure.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

namespace hvd::bench {

/// Returns the text for `pairs`, which may be any range of (name, value).
template <class Pairs>
std::string key_lines(const Pairs& pairs) {
  std::string text;
  for (const auto& [name, value] : pairs) text.append(name).append("=").append(value).append("\n");
  return text;
}

/// Removes the first line and returns it without its line break.
inline std::string_view take_line(std::string_view& text) {
  const std::string_view line = text.substr(0, text.find('\n'));
  text.remove_prefix(std::min(line.size() + 1, text.size()));
  return line;
}

/// Splits a line into name and value.
inline std::pair<std::string_view, std::string_view> split_line(std::string_view line) {
  const std::size_t equals = std::min(line.find('='), line.size());
  return {line.substr(0, equals), line.substr(std::min(equals + 1, line.size()))};
}

}  // namespace hvd::bench
