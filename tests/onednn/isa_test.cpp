// Tests the names of instruction sets: sets of both major versions of oneDNN, and sets that this program does not know.
#include "models/onednn/isa.h"

#include <gtest/gtest.h>

#include "models/onednn/compat.h"

namespace hvd::models::onednn::isa_test {
namespace {

TEST(Isa, BothVersionsHaveTheirOwnBits) {
  EXPECT_EQ(isa_name(0x7, 2), "avx2");
  EXPECT_EQ(isa_name(0x7, 3), "avx2");
  EXPECT_EQ(isa_name(0xe7, 2), "avx512_core_bf16");
  EXPECT_EQ(isa_name(0x3e7, 2), "avx512_core_amx");
  EXPECT_EQ(isa_name(0x407, 2), "avx2_vnni");
  EXPECT_EQ(isa_name(0xf, 3), "avx2_vnni");
  EXPECT_EQ(isa_name(495, 3), "avx512_core_fp16");
  EXPECT_EQ(isa_name(0xfef, 3), "avx512_core_amx");
  EXPECT_EQ(isa_name(0x1fef, 3), "avx512_core_amx_fp16");
}

TEST(Isa, AnUnknownOneIsNamedAfterWhatIsKnownOfIt) {
  EXPECT_EQ(isa_name(0x3fef, 3), "avx512_core_amx_fp16+0x2000");
  EXPECT_EQ(isa_name(0x2027, 3), "avx512_core+0x2000");
  EXPECT_EQ(isa_name(0x4000, 3), "isa+0x4000");
  EXPECT_EQ(isa_name(0, 3), "isa+0x0");
}

TEST(Isa, ThisProcessorHasAName) { EXPECT_EQ(library_isa().find_first_of("+ "), std::string::npos) << library_isa(); }

}  // namespace
}  // namespace hvd::models::onednn::isa_test
