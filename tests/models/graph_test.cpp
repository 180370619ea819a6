#include <algorithm>
#include <array>
#include <numeric>

#include "models/graph/builder.h"
#include "models/graph/cost.h"
#include "models/graph/memory_plan.h"
#include "models/zoo/zoo.h"
#include "tests/models/testing.h"

namespace hvd::models::graph_test {
namespace {

using testing::expect_error;

constexpr Window kSame3{.kernel_h = 3, .kernel_w = 3, .pad_top = 1, .pad_bottom = 1, .pad_left = 1, .pad_right = 1};

TEST(Shape, CountsAndPrints) {
  const Shape shape{8, 224, 224, 3};
  EXPECT_EQ(shape.rank(), 4);
  EXPECT_EQ(shape.count(), 8 * 224 * 224 * 3);
  EXPECT_EQ(shape.text(), "8x224x224x3");
  EXPECT_EQ(Shape().count(), 0);
  EXPECT_EQ(Shape({5}), Shape{5});
  EXPECT_FALSE(Shape({5}) == Shape({5, 1}));
}

TEST(OpKindNames, AreUniqueAndSplitForwardFromBackward) {
  std::vector<std::string> names;
  for (int kind = 0; kind <= static_cast<int>(OpKind::kAccumulate); ++kind) {
    const auto text = std::string(name(static_cast<OpKind>(kind)));
    EXPECT_NE(text, "unknown");
    EXPECT_EQ(std::count(names.begin(), names.end(), text), 0) << text;
    names.push_back(text);
    const bool named_backward = text.find("backward") != std::string::npos || text == "accumulate";
    EXPECT_EQ(is_backward(static_cast<OpKind>(kind)), named_backward) << text;
  }
}

TEST(Builder, InfersShapes) {
  GraphBuilder b("tiny", 2, 9, 5);
  // (9 + 1 + 0 - 3) / 2 + 1 = 4 rows, (9 + 0 + 2 - 3) / 3 + 1 = 3 columns.
  const Window uneven{.kernel_h = 3, .kernel_w = 3, .stride_h = 2, .stride_w = 3, .pad_top = 1, .pad_right = 2};
  const TensorId x = b.conv("conv", b.images(), 7, uneven, true);
  EXPECT_EQ(b.shape(x), (Shape{2, 4, 3, 7}));
  const TensorId both = b.concat("concat", std::array{x, b.relu("relu", x), x});
  EXPECT_EQ(b.shape(both), (Shape{2, 4, 3, 21}));
  const TensorId pooled = b.max_pool("pool", both, {.kernel_h = 2, .kernel_w = 2, .stride_h = 2, .stride_w = 2});
  EXPECT_EQ(b.shape(pooled), (Shape{2, 2, 1, 21}));
  const TensorId hidden = b.fully_connected("fc1", pooled, 11);
  const TensorId mean = b.global_avg_pool("mean", pooled);
  EXPECT_EQ(b.shape(mean), (Shape{2, 21}));
  const TensorId other = b.fully_connected("fc2", mean, 11);
  b.softmax_cross_entropy("loss", b.fully_connected("fc3", b.add("sum", hidden, other), 5));
  const Graph graph = std::move(b).build();
  EXPECT_EQ(graph.tensor(graph.parameters[0].value).shape, (Shape{7, 3, 3, 3}));    // out, kh, kw, in
  EXPECT_EQ(graph.tensor(graph.parameters[2].value).shape, (Shape{11, 2, 1, 21}));  // out, h, w, c
  EXPECT_EQ(graph.tensor(graph.parameters[4].value).shape, (Shape{11, 21}));
  EXPECT_EQ(graph.parameter_count(), 7 * 27 + 7 + 11 * 42 + 11 + 11 * 21 + 11 + 5 * 11 + 5);
  EXPECT_EQ(graph.first_backward, graph.nodes.size());
}

TEST(Builder, DecaysWeightsOnly) {
  GraphBuilder b("tiny", 2, 8, 5);
  TensorId x = b.batch_norm("bn", b.conv("conv", b.images(), 4, kSame3, true));
  b.softmax_cross_entropy("loss", b.fully_connected("fc", b.global_avg_pool("mean", x), 5));
  const Graph graph = std::move(b).build();
  std::vector<std::string> decayed;
  for (const Parameter& parameter : graph.parameters) {
    if (parameter.decay) decayed.push_back(parameter.name);
  }
  EXPECT_EQ(decayed, (std::vector<std::string>{"conv.weight", "fc.weight"}));
}

TEST(Builder, RefusesBadSizes) {
  expect_error(Errc::kInvalidArgument, {"net", "batch size is 0", "65536"}, [] { GraphBuilder("net", 0, 32, 10); });
  expect_error(Errc::kInvalidArgument, {"batch size is -4"}, [] { GraphBuilder("net", -4, 32, 10); });
  expect_error(Errc::kInvalidArgument, {"batch size is 65537"}, [] { GraphBuilder("net", 65537, 32, 10); });
  expect_error(Errc::kInvalidArgument, {"image size is 0"}, [] { GraphBuilder("net", 1, 0, 10); });
  expect_error(Errc::kInvalidArgument, {"number of classes is 0"}, [] { GraphBuilder("net", 1, 32, 0); });
}

TEST(Builder, ErrorsNameTheNodeAndTheShapes) {
  GraphBuilder b("tiny", 2, 4, 5);
  expect_error(Errc::kInvalidArgument, {"stem", "2x4x4x3", "7x7"},
               [&] { b.conv("stem", b.images(), 8, {.kernel_h = 7, .kernel_w = 7}, false); });
  expect_error(Errc::kInvalidArgument, {"pool", "2x4x4x3", "5x5"},
               [&] { b.max_pool("pool", b.images(), {.kernel_h = 5, .kernel_w = 5}); });
  expect_error(Errc::kInvalidArgument, {"pool", "padding"},
               [&] { b.avg_pool("pool", b.images(), {.kernel_h = 2, .kernel_w = 2, .pad_top = 2}); });
  expect_error(Errc::kInvalidArgument, {"conv", "positive"},
               [&] { b.conv("conv", b.images(), 8, {.stride_h = 0}, false); });
  expect_error(Errc::kInvalidArgument, {"conv", "output channels is 0"},
               [&] { b.conv("conv", b.images(), 0, kSame3, false); });
  const TensorId narrow = b.conv("narrow", b.images(), 4, kSame3, false);
  const TensorId small = b.conv("small", b.images(), 4, {.stride_h = 2, .stride_w = 2}, false);
  const TensorId flat = b.global_avg_pool("flat", narrow);
  expect_error(Errc::kInvalidArgument, {"join", "2x4x4x4", "2x2x2x4"}, [&] { b.add("join", narrow, small); });
  expect_error(Errc::kInvalidArgument, {"join", "2x4x4x4", "2x2x2x4"}, [&] {
    b.concat("join", std::array{narrow, small});
  });
  expect_error(Errc::kInvalidArgument, {"join"}, [&] { b.concat("join", {}); });
  expect_error(Errc::kInvalidArgument, {"deep", "{n, h, w, c}", "2x4"},
               [&] { b.conv("deep", flat, 8, kSame3, false); });
  expect_error(Errc::kInvalidArgument, {"loss", "2x5", "2x4"}, [&] { b.softmax_cross_entropy("loss", flat); });
  expect_error(Errc::kInvalidArgument, {"drop", "1.0"}, [&] { b.dropout("drop", flat, 1.0); });
  expect_error(Errc::kInvalidArgument, {"bn", "epsilon"}, [&] { b.batch_norm("bn", narrow, {.epsilon = 0}); });
  expect_error(Errc::kInvalidArgument, {"narrow", "unique"}, [&] { b.conv("narrow", b.images(), 4, kSame3, false); });
}

TEST(Builder, RefusesAGraphWithoutLossOrWithUnusedOutput) {
  expect_error(Errc::kInvalidArgument, {"tiny", "no loss"}, [] {
    GraphBuilder b("tiny", 2, 4, 5);
    b.global_avg_pool("flat", b.images());
    (void)std::move(b).build();
  });
  expect_error(Errc::kInvalidArgument, {"dead_end", "2x4x4x3"}, [] {
    GraphBuilder b("tiny", 2, 4, 5);
    b.relu("dead_end", b.images());
    b.softmax_cross_entropy("loss", b.fully_connected("fc", b.images(), 5));
    (void)std::move(b).build();
  });
}

Graph tiny() {
  GraphBuilder b("tiny", 2, 8, 5);
  const Window window{.kernel_h = 3, .kernel_w = 3, .stride_h = 2, .stride_w = 2, .pad_top = 1, .pad_left = 1};
  const TensorId x = b.batch_norm("bn", b.conv("conv", b.images(), 6, window, true));
  b.softmax_cross_entropy("loss", b.fully_connected("fc", x, 5));
  return differentiate(std::move(b).build());
}

NodeCost cost_of(const Graph& graph, const std::string& name) {
  const auto node = std::find_if(graph.nodes.begin(), graph.nodes.end(), [&](const Node& n) { return n.name == name; });
  return node == graph.nodes.end() ? NodeCost{} : cost(graph, *node, 4);
}

TEST(Cost, OfConvolutionsByHand) {
  const Graph graph = tiny();
  // The output has 2x4x4x6 elements. Each element takes 3*3*3 multiply-adds, including those on padding, and adds one
  // bias.
  const double macs = 2 * 4 * 4 * 6 * 27, in = 2 * 8 * 8 * 3, out = 2 * 4 * 4 * 6, weights = 6 * 27;
  EXPECT_EQ(cost_of(graph, "conv").flops, 2 * macs + out);
  EXPECT_EQ(cost_of(graph, "conv").bytes, 4 * (in + weights + 6 + out));
  EXPECT_EQ(cost_of(graph, "conv.backward_weights").flops, 2 * macs + out);
  EXPECT_EQ(cost_of(graph, "conv.backward_weights").bytes, 4 * (in + out + weights + 6));
  EXPECT_EQ(cost_of(graph, "fc.backward_data").flops, 2.0 * 2 * 5 * 96);
  // The two running statistics are read and written (4 x 6 values). gamma, beta, mean and inv_std are each read or
  // written once (another 4 x 6 values).
  EXPECT_EQ(cost_of(graph, "bn").bytes, 4 * (out + 2 * 6 + 4 * 6 + out + 2 * 6));
}

TEST(Cost, AForwardPassCountsOnlyConvolutionsAndFullyConnectedLayers) {
  EXPECT_EQ(forward_macs_per_image(tiny()), 4 * 4 * 6 * 27 + 96 * 5);
}

// A step has three times the multiply-adds of a forward pass, less those of the first layer's data gradient, which is
// not computed. A step has few other operations.
TEST(Cost, OfAStepIsThreeForwardPasses) {
  for (const ModelInfo& model : model_catalogue()) {
    const Graph graph = differentiate(build_model({.model = model.name, .batch_size = 2}));
    const double forward_flops = 2 * forward_macs_per_image(graph);
    EXPECT_GT(step_flops_per_image(graph), 2.9 * forward_flops) << model.name;
    EXPECT_LT(step_flops_per_image(graph), 3.1 * forward_flops) << model.name;
    const double sum = std::accumulate(graph.nodes.begin(), graph.nodes.end(), 0.0,
                                       [&](double total, const Node& n) { return total + cost(graph, n, 4).flops; });
    EXPECT_DOUBLE_EQ(sum / 2, step_flops_per_image(graph));
  }
}

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

}  // namespace hvd::models::graph_test
