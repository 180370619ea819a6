// Tests the verdicts of `hvd_bench doctor` on given measurements.
#include "bench/cli/doctor.h"

#include <gtest/gtest.h>

namespace hvd::bench::doctor_test {
namespace {

using Level = Finding::Level;

TEST(Doctor, WarnsOfBf16ThatIsSlowerThanFp32) {
  const Finding slow = judge_bf16(40e9, 200e9, "no AMX: use --dtype fp32");
  EXPECT_EQ(slow.level, Level::kWarning);
  EXPECT_EQ(slow.text, "40.0 GFLOP/s, 0.2 x fp32");
  EXPECT_EQ(slow.advice, "no AMX: use --dtype fp32");

  const Finding fast = judge_bf16(900e9, 200e9, "");
  EXPECT_EQ(fast.level, Level::kGood);
  EXPECT_EQ(fast.text, "900.0 GFLOP/s, 4.5 x fp32");
  EXPECT_EQ(fast.advice, "");

  const Finding disturbed = judge_bf16(100e9, 200e9, "");
  EXPECT_EQ(disturbed.level, Level::kWarning);
  EXPECT_NE(disturbed.advice.find("another program"), std::string::npos);
}

TEST(Doctor, WarnsOfNetworksThatGetReferenceCode) {
  EXPECT_EQ(judge_reference_code("").level, Level::kGood);
  const Finding slow = judge_reference_code("resnet50, 32 pixels, batch 1: oneDNN 2.6.3 has no compiled code");
  EXPECT_EQ(slow.level, Level::kWarning);
  EXPECT_EQ(slow.text, "resnet50, 32 pixels, batch 1: oneDNN 2.6.3 has no compiled code");
}

}  // namespace
}  // namespace hvd::bench::doctor_test
