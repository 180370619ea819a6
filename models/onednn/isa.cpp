#include "models/onednn/isa.h"

#include <fmt/format.h>

#include <array>
#include <span>
#include <string_view>

namespace hvd::models::onednn {
namespace {

struct Isa {
  unsigned bits;
  std::string_view name;
};
// Each list is in ascending order. An instruction set's bits include the bits of the sets that it extends.
constexpr std::array kVersion2{Isa{0x1, "sse41"},
                               Isa{0x3, "avx"},
                               Isa{0x7, "avx2"},
                               Isa{0xf, "avx512_mic"},
                               Isa{0x27, "avx512_core"},
                               Isa{0x67, "avx512_core_vnni"},
                               Isa{0xe7, "avx512_core_bf16"},
                               Isa{0x3e7, "avx512_core_amx"},
                               Isa{0x407, "avx2_vnni"}};
constexpr std::array kVersion3{Isa{0x1, "sse41"},
                               Isa{0x3, "avx"},
                               Isa{0x7, "avx2"},
                               Isa{0xf, "avx2_vnni"},
                               Isa{0x1f, "avx2_vnni_2"},
                               Isa{0x27, "avx512_core"},
                               Isa{0x67, "avx512_core_vnni"},
                               Isa{0xe7, "avx512_core_bf16"},
                               Isa{0x1ef, "avx512_core_fp16"},
                               Isa{0xfef, "avx512_core_amx"},
                               Isa{0x1fef, "avx512_core_amx_fp16"}};
// oneDNN 2.6.3 reports 0x1f for SVE of 512 bits. Newer sources say 0x27.
constexpr std::array kArm{Isa{0x1, "asimd"},   Isa{0x3, "sve_128"},  Isa{0x7, "sve_256"},
                          Isa{0xf, "sve_384"}, Isa{0x1f, "sve_512"}, Isa{0x27, "sve_512"}};

std::span<const Isa> known_sets(int library_major, Architecture architecture) {
  if (architecture == Architecture::kArm) return kArm;
  return library_major < 3 ? std::span<const Isa>(kVersion2) : std::span<const Isa>(kVersion3);
}

}  // namespace

std::string isa_name(unsigned isa, int library_major, Architecture architecture) {
  const std::span<const Isa> known = known_sets(library_major, architecture);
  Isa best{0, "isa"};
  for (const Isa& candidate : known) {
    if ((isa & candidate.bits) == candidate.bits) best = candidate;
  }
  if (best.bits == isa && isa != 0) return std::string(best.name);
  return fmt::format("{}+{:#x}", best.name, isa & ~best.bits);
}

std::string version_reason(unsigned isa, Version library, Architecture architecture) {
  if (architecture != Architecture::kArm) return {};
  const std::string name = isa_name(isa, library.major, architecture);
  if (name == "sve_512") return {};
  if (library.major < 3) {
    return fmt::format("oneDNN 2 compiles convolutions on Arm for SVE of 512 bits only, and uses {} here", name);
  }
  constexpr int kLastWithout128Bits = 7;  // 3.7.2; later versions up to 3.11 were not looked at
  if (library.major > 3 || library.minor > kLastWithout128Bits || name == "sve_256") return {};
  return fmt::format("oneDNN 3.{} compiles convolutions on Arm for SVE of 256 and 512 bits only, and uses {} here",
                     library.minor, name);
}

}  // namespace hvd::models::onednn
