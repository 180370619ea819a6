#include "bench/hardware/roofline.h"

#include <gtest/gtest.h>

namespace hvd::bench::roofline_test {
namespace {

constexpr DeviceRates kRates{.flops = 100, .bytes = 10};  // ridge point: 10 FLOPs per byte

TEST(Roofline, ABoundIsTheLongerOfArithmeticAndTraffic) {
  EXPECT_DOUBLE_EQ(bound_seconds(200, 5, kRates), 2);
  EXPECT_DOUBLE_EQ(bound_seconds(200, 40, kRates), 4);
}

TEST(Roofline, AddsUpByKindTheMostTimeFirst) {
  const std::vector<OperationRow> operations{
      {.node = "a", .kind = "conv", .implementation = {}, .seconds = 3, .flops = 200, .bytes = 5},
      {.node = "b", .kind = "relu", .implementation = {}, .seconds = 8, .flops = 1, .bytes = 40},
      {.node = "c", .kind = "conv", .implementation = {}, .seconds = 2, .flops = 10, .bytes = 10}};
  const std::vector<BoundRow> rows = bounds_by_kind(operations, kRates);
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0].kind, "relu");
  EXPECT_EQ(rows[0].launches, 1);
  EXPECT_DOUBLE_EQ(rows[0].bound, 4);
  EXPECT_FALSE(rows[0].arithmetic);
  EXPECT_EQ(rows[1].launches, 2);
  EXPECT_DOUBLE_EQ(rows[1].seconds, 5);
  EXPECT_DOUBLE_EQ(rows[1].bound, 3);  // the sum of 2 s bound by arithmetic and 1 s bound by traffic
  EXPECT_TRUE(rows[1].arithmetic);
  EXPECT_EQ(bounds_table(rows),
            "launches  measured ms    bound ms   ratio  bound by    operation\n"
            "       1     8000.000    4000.000    2.00  memory      relu\n"
            "       2     5000.000    3000.000    1.67  arithmetic  conv\n"
            "       3    13000.000    7000.000    1.86              all\n");
}

TEST(Roofline, SaysWhatPartOfTheMachineIsUsed) {
  EXPECT_DOUBLE_EQ(flop_utilisation(5, 8, kRates), 0.4);
  EXPECT_EQ(bounds_text(5, 8, 16, 2, kRates),
            "5.0 images/s: 40.0 % of the peak's FLOP/s; unfused roofline 8.0 images/s (62.5 % of it)");
}

TEST(Roofline, KnowsTheGpusOfTheDataSheets) {
  const auto h200 = published_rates("NVIDIA H200", DataType::kBF16, false);
  ASSERT_TRUE(h200);
  EXPECT_DOUBLE_EQ(h200->flops, 989.5e12);
  EXPECT_DOUBLE_EQ(h200->bytes, 4.8e12);
  EXPECT_DOUBLE_EQ(published_rates("NVIDIA GH200 480GB", DataType::kF16, false)->bytes, 4.0e12);
  EXPECT_DOUBLE_EQ(published_rates("NVIDIA A100-SXM4-80GB", DataType::kF32, true)->flops, 156e12);
  EXPECT_DOUBLE_EQ(published_rates("NVIDIA A100-SXM4-40GB", DataType::kF32, false)->bytes, 1.555e12);
  EXPECT_DOUBLE_EQ(published_rates("NVIDIA GB200", DataType::kBF16, false)->flops, 2500e12);
  EXPECT_DOUBLE_EQ(published_rates("NVIDIA B200", DataType::kF32, true)->flops, 1125e12);
  EXPECT_DOUBLE_EQ(published_rates("NVIDIA L40S", DataType::kF32, false)->bytes, 0.864e12);
  EXPECT_FALSE(published_rates("NVIDIA L40", DataType::kF32, false)) << "half of an L40S's matrix rates";
  EXPECT_FALSE(published_rates("Tesla V100-SXM2-16GB", DataType::kBF16, false));  // a V100 has no bf16
  EXPECT_FALSE(published_rates("NVIDIA GeForce 9", DataType::kF32, false));
}

}  // namespace
}  // namespace hvd::bench::roofline_test
