#include "engine/base/vector_level.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "engine/base/error.h"

namespace hvd {

std::string_view name(VectorLevel level) noexcept {
  switch (level) {
#if defined(__x86_64__)
    case VectorLevel::kBase: return "SSE2";
#else
    case VectorLevel::kBase: return "NEON";
#endif
    case VectorLevel::kAvx2: return "AVX2";
    case VectorLevel::kAvx512: return "AVX512";
  }
  return "";
}

std::vector<VectorLevel> available_levels() {
  std::vector<VectorLevel> levels{VectorLevel::kBase};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") == 0 || __builtin_cpu_supports("fma") == 0) return levels;
  levels.push_back(VectorLevel::kAvx2);
  if (__builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
      __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0) {
    levels.push_back(VectorLevel::kAvx512);
  }
#endif
  return levels;
}

VectorLevel highest_level(const std::vector<VectorLevel>& available, std::string_view limit) {
  if (limit.empty()) return available.back();
#if defined(__x86_64__)
  constexpr std::array kKnown{VectorLevel::kBase, VectorLevel::kAvx2, VectorLevel::kAvx512};
#else
  constexpr std::array kKnown{VectorLevel::kBase};
#endif
  std::vector<std::string_view> names;
  for (const VectorLevel known : kKnown) {
    if (name(known) == limit) return std::min(known, available.back());
    names.push_back(name(known));
  }
  throw Error(Errc::kInvalidArgument,
              fmt::format("{}: '{:.40}' is none of {}", kMaxCpuIsa, limit, fmt::join(names, ", ")));
}

std::string vector_level_limit() {
  const char* const limit = std::getenv(kMaxCpuIsa.data());
  return limit == nullptr ? "" : limit;
}

VectorLevel vector_level() {
  static const VectorLevel level = highest_level(available_levels(), vector_level_limit());
  return level;
}

}  // namespace hvd
