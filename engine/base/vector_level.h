// The vector instructions that this project's own kernels may use. All levels compute the same bits; only the speed
// differs. Functions compiled for a level are in at_level.h. Pure, except for the last two functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hvd {

/// Ascending: a processor with a level has all lower levels. Another architecture needs only its own base level.
enum class VectorLevel : std::uint8_t {
  kBase,    ///< vectors of 16 bytes that every processor of the architecture has: SSE2 on x86-64, NEON on Arm
  kAvx2,    ///< vectors of 32 bytes: AVX2 and FMA
  kAvx512,  ///< vectors of 64 bytes: AVX-512 F, BW, DQ and VL
};

constexpr int vector_bytes(VectorLevel level) noexcept {
  return level == VectorLevel::kBase ? 16 : level == VectorLevel::kAvx2 ? 32 : 64;
}

/// The environment variable that lowers the level. Values: names of levels.
inline constexpr std::string_view kMaxCpuIsa = "HVD_MAX_CPU_ISA";

/// Returns the level's value of HVD_MAX_CPU_ISA: "SSE2", "AVX2" or "AVX512".
std::string_view name(VectorLevel level) noexcept;

/// Returns the levels that this processor and its operating system have, in ascending order. Never empty.
std::vector<VectorLevel> available_levels();

/// Returns the highest of `available` that is not above `limit`, a value of HVD_MAX_CPU_ISA; empty: no limit.
/// Errors: invalid_argument if `limit` is not the name of a level.
VectorLevel highest_level(const std::vector<VectorLevel>& available, std::string_view limit);

/// Returns the value of HVD_MAX_CPU_ISA in this process; empty: not set.
std::string vector_level_limit();

/// Returns the level of this process: the highest that the processor has and that HVD_MAX_CPU_ISA allows. It is found
/// in the first call and does not change. Any thread may call. Errors: those of highest_level().
VectorLevel vector_level();

}  // namespace hvd
