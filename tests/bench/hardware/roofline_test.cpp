#include "bench/hardware/roofline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "models/graph/autodiff.h"
#include "models/graph/cost.h"
#include "models/zoo/zoo.h"

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

models::Graph resnet101(std::int64_t batch) {
  models::ModelSpec spec;
  spec.model = "resnet101";
  spec.batch_size = batch;
  spec.image_size = 224;
  return models::differentiate(models::build_model(spec));
}

TEST(StepBound, OfResNet101IsThreeForwardPassesAndNearThePublishedRoofline) {
  const models::Graph graph = resnet101(64);
  const auto bound = step_bound(graph, "NVIDIA H200", DataType::kF16, false);
  ASSERT_TRUE(bound);
  EXPECT_DOUBLE_EQ(bound->rates.flops, 989.5e12);
  EXPECT_NEAR(bound->flops / 64, models::step_flops_per_image(graph), 1e-6 * bound->flops / 64);
  // torchvision counts 7.80 GMAC (2 FLOPs each) in a forward pass. A training step takes three times as many FLOPs. The
  // tolerance covers the pointwise operations and the data gradient that the first layer does not need.
  EXPECT_NEAR(bound->flops / 64, 3 * 2 * 7.80e9, 0.02 * 3 * 2 * 7.80e9);
  EXPECT_GT(bound->seconds, bound->flops / bound->rates.flops);
  EXPECT_GT(bound->seconds, bound->bytes / bound->rates.bytes);
  EXPECT_LT(bound->seconds, bound->flops / bound->rates.flops + bound->bytes / bound->rates.bytes);
}

TEST(StepBound, IsTheSumOfTheOperationsBounds) {
  const models::Graph graph = resnet101(1);
  double seconds = 0;
  for (const models::Node& node : graph.nodes) {
    const models::NodeCost cost = models::cost(graph, node, 4);
    seconds += std::max(cost.flops / 67e12, cost.bytes / 4.8e12);
  }
  const auto bound = step_bound(graph, "NVIDIA H200", DataType::kF32, false);
  ASSERT_TRUE(bound);
  EXPECT_NEAR(bound->seconds, seconds, 1e-12 * seconds);
}

TEST(StepBound, UnknownDevicesAndTypesHaveNone) {
  const models::Graph graph = resnet101(1);
  EXPECT_FALSE(step_bound(graph, "Fake H1", DataType::kF32, false));
  EXPECT_FALSE(step_bound(graph, "Tesla V100-SXM2-16GB", DataType::kBF16, false));
}

RunRecord measured() {
  RunRecord run;
  run.compute_type = "fp16";
  run.batch_size = 10;
  run.world_size = 2;
  run.images_per_second = Estimate{2000, 1900, 2100};
  return run;
}

StepBound by_hand() {
  // 10 images of 20 GFLOP and 10 MB each take 2 ms at 100 TFLOP/s and 0.1 ms at 1 TB/s.
  return {.device = "X", .rates = {.flops = 100e12, .bytes = 1e12}, .flops = 200e9, .bytes = 100e6, .seconds = 2.05e-3};
}

TEST(StepBound, LineHasWorkUtilisationAndRoofline) {
  const std::string line = bound_line(measured(), by_hand());
  EXPECT_NE(line.find("100.0 TFLOP/s in fp16, 1.00 TB/s; 20.0 GFLOP and 10.0 MB per image"), std::string::npos) << line;
  EXPECT_NE(line.find("1000.0 images/s: 20.0 % of the peak's FLOP/s"), std::string::npos) << line;
  EXPECT_NE(line.find("unfused roofline 4878.0 images/s"), std::string::npos) << line;
  EXPECT_NE(line.find("(20.5 % of it)"), std::string::npos) << line;
  EXPECT_EQ(bound_line(RunRecord{}, by_hand()), "");
}

TEST(StepBound, IsStoredInNoFingerprint) {
  const Provenance facts = bound_facts(by_hand());
  EXPECT_EQ(std::stod(facts.at("bound.flops_per_step").value), 200e9);
  for (const auto& [key, fact] : facts) EXPECT_FALSE(fact.in_fingerprint) << key;
}

TEST(StepBound, TableOfMeasuredOperations) {
  RunRecord run = measured();
  EXPECT_EQ(bound_table(run, by_hand()), "");
  run.operations.push_back({"conv1", "conv", "engine 3", true, 4e-3, 200e9, 1e6});
  const std::string table = bound_table(run, by_hand());
  EXPECT_NE(table.find("2.000    2.00  arithmetic  conv"), std::string::npos) << table;
  run.operations.push_back({"relu1", "relu", "", false, 1e-3, 0, 1e6});
  EXPECT_NE(time_table(run).find("       1        4.000      80.0  conv\n"), std::string::npos) << time_table(run);
  EXPECT_EQ(time_table(RunRecord{}), "");
}

}  // namespace

}  // namespace hvd::bench::roofline_test
