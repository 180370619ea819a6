// Writing JSON: escaping and numbers. Reading JSON is Python's job; nothing here parses.
#pragma once

#include <string>
#include <string_view>

namespace hvd {

/// `text` as a JSON string, quotes included; control characters escaped. A byte that is not UTF-8 (file names
/// and environments may hold any) becomes U+FFFD, since no JSON reader would take it.
std::string json_string(std::string_view text);

/// Shortest round-trip decimal; "null" for NaN and infinity, which JSON does not have.
std::string json_number(double value);

}  // namespace hvd
