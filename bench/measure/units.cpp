#include "bench/measure/units.h"

#include <array>
#include <cmath>
#include <cstdio>

namespace hvd::bench {

std::string bytes_text(double bytes) {
  constexpr std::array kUnits{"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  std::size_t unit = 0;
  while (std::abs(bytes) >= 1024 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  std::array<char, 64> text{};
  const int decimals = unit == 0 || std::abs(bytes) >= 100 ? 0 : 2;
  std::snprintf(text.data(), text.size(), "%.*f %s", decimals, bytes, kUnits.at(unit));
  return text.data();
}

std::string duration_text(double seconds) {
  const auto whole = std::lround(seconds);
  if (whole < 120) return std::to_string(whole) + " s";
  if (whole < 7200) return std::to_string((whole + 30) / 60) + " min";
  return std::to_string(whole / 3600) + " h " + std::to_string(whole % 3600 / 60) + " min";
}

}  // namespace hvd::bench
