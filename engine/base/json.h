// Helpers to write JSON: strings and numbers. The C++ code never reads JSON; the Python scripts do.
#pragma once

#include <string>
#include <string_view>

namespace hvd {

/// Returns `text` with U+FFFD for each byte that is not UTF-8. File names and environment variables may hold any bytes.
std::string well_formed_utf8(std::string_view text);

/// Returns `text` as a JSON string with its quotes. Control characters are escaped. A byte that is not UTF-8 becomes
/// U+FFFD, because JSON readers reject text that is not UTF-8.
std::string json_string(std::string_view text);

/// Returns the shortest decimal that reads back as `value`; "null" for NaN and infinity, which JSON does not have.
std::string json_number(double value);

}  // namespace hvd
