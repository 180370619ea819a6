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
// kVersion2 and the list for version 3 are in ascending order. An instruction set's bits include the bits of the sets
// that it extends.
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

}  // namespace

std::string isa_name(unsigned isa, int library_major) {
  const std::span<const Isa> known =
      library_major < 3 ? std::span<const Isa>(kVersion2) : std::span<const Isa>(kVersion3);
  Isa best{0, "isa"};
  for (const Isa& candidate : known) {
    if ((isa & candidate.bits) == candidate.bits) best = candidate;
  }
  if (best.bits == isa && isa != 0) return std::string(best.name);
  return fmt::format("{}+{:#x}", best.name, isa & ~best.bits);
}

}  // namespace hvd::models::onednn
