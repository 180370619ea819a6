// Tests the names of instruction sets: sets of both major versions of oneDNN, and sets that this program does not know.
#include "models/onednn/compat.h"

#include <gtest/gtest.h>

#include <string>

namespace hvd::models::onednn::compat_test {
namespace {

std::string x86_name(unsigned isa, int library_major) { return isa_name(isa, library_major, Architecture::kX86); }

TEST(Isa, BothVersionsHaveTheirOwnBits) {
  EXPECT_EQ(x86_name(0x7, 2), "avx2");
  EXPECT_EQ(x86_name(0x7, 3), "avx2");
  EXPECT_EQ(x86_name(0xe7, 2), "avx512_core_bf16");
  EXPECT_EQ(x86_name(0x3e7, 2), "avx512_core_amx");
  EXPECT_EQ(x86_name(0x407, 2), "avx2_vnni");
  EXPECT_EQ(x86_name(0xf, 3), "avx2_vnni");
  EXPECT_EQ(x86_name(495, 3), "avx512_core_fp16");
  EXPECT_EQ(x86_name(0xfef, 3), "avx512_core_amx");
  EXPECT_EQ(x86_name(0x1fef, 3), "avx512_core_amx_fp16");
}

TEST(Isa, AnUnknownOneIsNamedAfterWhatIsKnownOfIt) {
  EXPECT_EQ(x86_name(0x3fef, 3), "avx512_core_amx_fp16+0x2000");
  EXPECT_EQ(x86_name(0x2027, 3), "avx512_core+0x2000");
  EXPECT_EQ(x86_name(0x4000, 3), "isa+0x4000");
  EXPECT_EQ(x86_name(0, 3), "isa+0x0");
}

TEST(Isa, ArmHasOtherSetsWithTheSameBits) {
  for (const int library_major : {2, 3}) {
    const auto arm_name = [&](unsigned isa) { return isa_name(isa, library_major, Architecture::kArm); };
    EXPECT_EQ(arm_name(0x1), "asimd");
    EXPECT_EQ(arm_name(0x3), "sve_128");
    EXPECT_EQ(arm_name(0x7), "sve_256");
    EXPECT_EQ(arm_name(0xf), "sve_384");
    EXPECT_EQ(arm_name(0x1f), "sve_512");
    EXPECT_EQ(arm_name(0x27), "sve_512");
    EXPECT_EQ(arm_name(0x103), "sve_128+0x100");
  }
}

TEST(Isa, OnArmTheLengthOfSveDecidesWhichVersionIsFast) {
  const auto reason = [](unsigned isa, Version library) { return version_reason(isa, library, Architecture::kArm); };
  EXPECT_EQ(reason(0x1, {2, 6}), "oneDNN 2 compiles convolutions on Arm for SVE of 512 bits only, and uses asimd here");
  EXPECT_EQ(reason(0x1f, {2, 6}), "");
  EXPECT_EQ(reason(0x3, {3, 7}),
            "oneDNN 3.7 compiles convolutions on Arm for SVE of 256 and 512 bits only, and uses sve_128 here");
  EXPECT_EQ(reason(0x7, {3, 7}), "");
  EXPECT_EQ(reason(0x27, {3, 7}), "");
  EXPECT_EQ(reason(0x3, {3, 12}), "");
  EXPECT_EQ(version_reason(0x1, {2, 6}, Architecture::kX86), "");
}

TEST(Isa, ThisProcessorHasAName) { EXPECT_EQ(library_isa().find_first_of("+ "), std::string::npos) << library_isa(); }

// Tests which unit of a processor computes bf16 products, for given instruction sets.

TEST(Bf16Units, ByInstructionSet) {
  EXPECT_EQ(bf16_units(dnnl::cpu_isa::avx512_core_amx), Bf16Units::kTiles);
  EXPECT_EQ(bf16_units(dnnl::cpu_isa::avx512_core_bf16), Bf16Units::kVectors);
  for (const dnnl::cpu_isa isa : {dnnl::cpu_isa::sse41, dnnl::cpu_isa::avx, dnnl::cpu_isa::avx2,
                                  dnnl::cpu_isa::avx512_core, dnnl::cpu_isa::avx512_core_vnni}) {
    EXPECT_EQ(bf16_units(isa), Bf16Units::kNone);
  }
}

}  // namespace

}  // namespace hvd::models::onednn::compat_test
