// Bytes and durations as text for people. Pure.
#pragma once

#include <string>

namespace hvd::bench {

/// Returns text such as "1.23 GiB" or "123 MiB".
std::string bytes_text(double bytes);
/// Returns text such as "45 s", "3 min" or "2 h 10 min".
std::string duration_text(double seconds);

}  // namespace hvd::bench
