#include "models/graph/memory_plan.h"

#include <algorithm>

#include "models/zoo/zoo.h"
#include "tests/models/testing.h"

namespace hvd::models::memory_plan_test {
namespace {

using testing::expect_error;

// Checks a plan by brute force, unlike the planner: compares every pair of buffers and looks at every byte range.
void expect_valid(const std::vector<BufferUse>& buffers, const MemoryPlan& plan, std::size_t align) {
  ASSERT_EQ(plan.offsets.size(), buffers.size());
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    EXPECT_EQ(plan.offsets[i] % align, 0U);
    EXPECT_LE(plan.offsets[i] + buffers[i].bytes, plan.arena_bytes);
    for (std::size_t j = 0; j < i; ++j) {
      const bool in_time = buffers[i].first <= buffers[j].last && buffers[j].first <= buffers[i].last;
      const bool in_space =
          plan.offsets[i] < plan.offsets[j] + buffers[j].bytes && plan.offsets[j] < plan.offsets[i] + buffers[i].bytes;
      EXPECT_FALSE(in_time && in_space) << buffers[i].name << " and " << buffers[j].name << " overlap";
    }
  }
}

TEST(MemoryPlan, ReusesMemoryOfDeadBuffers) {
  // The steps use 64+128, 128+64 and 64+256 bytes. The lower bound is therefore 320, and the plan must reach it.
  const std::vector<BufferUse> buffers{{"a", 64, 0, 0}, {"b", 128, 0, 1}, {"c", 64, 1, 2}, {"d", 256, 2, 2}};
  const MemoryPlan plan = plan_memory(buffers);
  EXPECT_EQ(plan.lower_bound_bytes, 320U);
  EXPECT_EQ(plan.arena_bytes, 320U);
  EXPECT_EQ(plan.sum_bytes, 512U);
  expect_valid(buffers, plan, 64);
}

TEST(MemoryPlan, ABufferReadWhenAnotherIsWrittenIsStillAlive) {
  const std::vector<BufferUse> buffers{{"in", 64, 0, 1}, {"out", 64, 1, 2}};
  EXPECT_EQ(plan_memory(buffers).arena_bytes, 128U);
}

TEST(MemoryPlan, AlignsAndTakesEmptyInput) {
  const std::vector<BufferUse> buffers{{"a", 1, 0, 0}, {"b", 65, 0, 0}, {"none", 0, 0, 0}};
  const MemoryPlan plan = plan_memory(buffers);
  EXPECT_EQ(plan.arena_bytes, 64U + 128U);
  expect_valid(buffers, plan, 64);
  EXPECT_EQ(plan_memory({}).arena_bytes, 0U);
}

TEST(MemoryPlan, RefusesALifetimeThatEndsBeforeItStarts) {
  expect_error(Errc::kInvalidArgument, {"backwards", "step 1"}, [] { plan_memory({{"backwards", 64, 2, 1}}); });
}

TEST(MemoryPlan, NeverOverlapsOnRandomLifetimes) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Philox random(seed, 1);
    std::vector<BufferUse> buffers;
    const auto count = 1 + random.block(0)[0] % 60;
    for (std::uint32_t i = 0; i < count; ++i) {
      const auto words = random.block(i + 1);
      const int first = static_cast<int>(words[0] % 40);
      buffers.push_back({"b" + std::to_string(i), words[1] % 5000, first, first + static_cast<int>(words[2] % 20)});
    }
    const MemoryPlan plan = plan_memory(buffers, 16);
    expect_valid(buffers, plan, 16);
    EXPECT_GE(plan.arena_bytes, plan.lower_bound_bytes);
    EXPECT_LE(plan.arena_bytes, plan.sum_bytes);
  }
}

TEST(MemoryPlan, PlacesTheNetworksWithinFivePercentOfTheBound) {
  for (const ModelInfo& model : model_catalogue()) {
    SCOPED_TRACE(model.name);
    const auto buffers = lifetimes(differentiate(build_model({.model = model.name, .batch_size = 8})), 4);
    const MemoryPlan plan = plan_memory(buffers);
    expect_valid(buffers, plan, 64);
    EXPECT_GE(plan.arena_bytes, plan.lower_bound_bytes);
    EXPECT_LE(static_cast<double>(plan.arena_bytes), 1.05 * static_cast<double>(plan.lower_bound_bytes));
    ::testing::Test::RecordProperty(model.name + "_arena_bytes", std::to_string(plan.arena_bytes));
    ::testing::Test::RecordProperty(model.name + "_lower_bound_bytes", std::to_string(plan.lower_bound_bytes));
  }
}

TEST(Lifetimes, RunFromTheProducerToTheLastReader) {
  const Graph graph = differentiate(build_model({.model = "resnet50", .batch_size = 1, .image_size = 64}));
  const auto buffers = lifetimes(graph, 2);
  const auto find = [&](const std::string& name) {
    return *std::find_if(buffers.begin(), buffers.end(), [&](const BufferUse& b) { return b.name == name; });
  };
  const auto node = [&](const std::string& name) {
    const auto at = std::find_if(graph.nodes.begin(), graph.nodes.end(), [&](const Node& n) { return n.name == name; });
    return static_cast<int>(at - graph.nodes.begin());
  };
  const BufferUse conv = find("conv1:y");  // batch normalisation's backward pass reads its input again
  EXPECT_EQ(conv.bytes, 32U * 32 * 64 * 2);
  EXPECT_EQ(conv.first, node("conv1"));
  EXPECT_EQ(conv.last, node("bn1.backward"));
  const BufferUse shared = find("layer1.0.add:y");  // only the ReLU reads this tensor
  EXPECT_EQ(shared.last, node("layer1.0.relu3"));
}

}  // namespace
}  // namespace hvd::models::memory_plan_test
