// Writing JSON: escaping and numbers. Reading JSON is Python's job; nothing here parses.
#pragma once

#include <string>
#include <string_view>

namespace hvd {

/// `text` as a JSON string, quotes included; control characters escaped.
std::string json_string(std::string_view text);

/// Shortest round-trip decimal; "null" for NaN and infinity, which JSON does not have.
std::string json_number(double value);

}  // namespace hvd
