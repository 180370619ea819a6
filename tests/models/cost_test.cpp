#include "models/graph/cost.h"

#include <algorithm>
#include <numeric>

#include "models/graph/builder.h"
#include "models/zoo/zoo.h"
#include "tests/models/testing.h"

namespace hvd::models::cost_test {
namespace {

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

}  // namespace
}  // namespace hvd::models::cost_test
