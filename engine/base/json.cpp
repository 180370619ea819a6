#include "engine/base/json.h"

#include <array>
#include <charconv>
#include <cmath>

namespace hvd {
namespace {

/// Returns the length of the well-formed UTF-8 sequence at the start of `text`; 0 if `text` starts with none.
/// Source: Unicode 15, table 3-7 (no overlong forms, no surrogates, nothing beyond U+10FFFF).
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) -> unsigned {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
  };
  const auto tail = [&](std::size_t i) { return byte(i) >= 0x80 && byte(i) <= 0xbf; };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead <= 0xdf) return tail(1) ? 2 : 0;
  if (lead >= 0xe0 && lead <= 0xef) {
    const unsigned lowest = lead == 0xe0 ? 0xa0 : 0x80;
    const unsigned highest = lead == 0xed ? 0x9f : 0xbf;
    return byte(1) >= lowest && byte(1) <= highest && tail(2) ? 3 : 0;
  }
  if (lead >= 0xf0 && lead <= 0xf4) {
    const unsigned lowest = lead == 0xf0 ? 0x90 : 0x80;
    const unsigned highest = lead == 0xf4 ? 0x8f : 0xbf;
    return byte(1) >= lowest && byte(1) <= highest && tail(2) && tail(3) ? 4 : 0;
  }
  return 0;
}

constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD

}  // namespace

std::string well_formed_utf8(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    out += length == 0 ? kReplacement : text.substr(0, length);
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out;
}

std::string json_string(std::string_view text) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out = "\"";
  for (std::size_t length = 0; !text.empty(); text.remove_prefix(length)) {
    length = utf8_length(text);
    if (length != 1) {
      out += length == 0 ? kReplacement : text.substr(0, length);
      if (length == 0) length = 1;
      continue;
    }
    const char c = text.front();
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\t': out += "\\t"; break;
      case '\r': out += "\\r"; break;
      default:
        if (const auto byte = static_cast<unsigned char>(c); byte < 0x20) {
          out += "\\u00";
          out += kDigits[byte >> 4];
          out += kDigits[byte & 0xf];
        } else {
          out += c;
        }
    }
  }
  return out + "\"";
}

std::string json_number(double value) {
  if (!std::isfinite(value)) return "null";
  std::array<char, 32> buffer{};
  const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  return {buffer.data(), result.ptr};
}

}  // namespace hvd
