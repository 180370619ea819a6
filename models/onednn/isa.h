// Names of the instruction sets that oneDNN reports, for versions 2 and 3 of the library on x86 and on Arm.
#pragma once

#include <cstdint>
#include <string>

namespace hvd::models::onednn {

enum class Architecture : std::uint8_t { kX86, kArm };
#if defined(__aarch64__)
inline constexpr Architecture kThisArchitecture = Architecture::kArm;
#else
inline constexpr Architecture kThisArchitecture = Architecture::kX86;
#endif

/// Returns the name of `isa`, a value of dnnl_cpu_isa_t: "avx512_core_amx", "sve_256". For a value that this program
/// does not know, returns the name of the largest known set that `isa` includes, and the remaining bits of `isa`:
/// "avx512_core_amx+0x2000". oneDNN 2 and 3 use different bits on x86; `library_major` is the version that reported
/// `isa`. On Arm the same values have other meanings. Pure.
/// Source: dnnl_types.h of oneDNN 2.6 and 3.7; for Arm src/cpu/aarch64/cpu_isa_traits.hpp.
std::string isa_name(unsigned isa, int library_major, Architecture architecture = kThisArchitecture);

struct Version {
  int major = 0, minor = 0;
};
/// Returns the reason why a library of this version is slow on a processor with `isa`, where a newer version is faster;
/// empty if no such reason is known. Pure. Source: the symbols of Debian's arm64 packages (docs/onednn.md).
std::string version_reason(unsigned isa, Version library, Architecture architecture = kThisArchitecture);

}  // namespace hvd::models::onednn
