// Tests which unit of a processor computes bf16 products, for given instruction sets.
#include <gtest/gtest.h>

#include "models/onednn/compat.h"

namespace hvd::models::onednn::bf16_units_test {
namespace {

TEST(Bf16Units, ByInstructionSet) {
  EXPECT_EQ(bf16_units(dnnl::cpu_isa::avx512_core_amx), Bf16Units::kTiles);
  EXPECT_EQ(bf16_units(dnnl::cpu_isa::avx512_core_bf16), Bf16Units::kVectors);
  for (const dnnl::cpu_isa isa : {dnnl::cpu_isa::sse41, dnnl::cpu_isa::avx, dnnl::cpu_isa::avx2,
                                  dnnl::cpu_isa::avx512_core, dnnl::cpu_isa::avx512_core_vnni}) {
    EXPECT_EQ(bf16_units(isa), Bf16Units::kNone);
  }
}

}  // namespace
}  // namespace hvd::models::onednn::bf16_units_test
