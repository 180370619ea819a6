// Writing JSON: escaping and numbers. Reading JSON is Python's job; nothing here parses but UTF-8.
#pragma once

#include <string>
#include <string_view>

namespace hvd {

/// `text` with U+FFFD for each byte that is not UTF-8 (file names and environments may hold any).
std::string well_formed_utf8(std::string_view text);

/// `text` as a JSON string, quotes included; control characters escaped. A byte that is not UTF-8 becomes
/// U+FFFD, since no JSON reader would take it.
std::string json_string(std::string_view text);

/// Shortest round-trip decimal; "null" for NaN and infinity, which JSON does not have.
std::string json_number(double value);

}  // namespace hvd
