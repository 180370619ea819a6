// Reads a file, or standard input, of limited size.
#pragma once

#include <cstddef>
#include <string>

namespace hvd::bench {

inline constexpr const char* kStandardInput = "standard input";

/// `file`: a path, or kStandardInput.
/// Errors: io if the file cannot be read; invalid_argument if it has more than `most` bytes.
std::string read_text(const std::string& file, std::size_t most);

}  // namespace hvd::bench
