// Bytes and durations as text for people. Pure.
#pragma once

#include <string>

namespace hvd::bench {

/// "1.23 GiB", "123 MiB".
std::string bytes_text(double bytes);
/// "45 s", "3 min", "2 h 10 min".
std::string duration_text(double seconds);

}  // namespace hvd::bench
