#include <algorithm>
#include <array>
#include <set>

#include "models/graph/builder.h"
#include "models/zoo/zoo.h"
#include "tests/models/testing.h"

namespace hvd::models::autodiff_test {
namespace {

using testing::expect_error;

// images -> stem -> relu -+-> left ----+-> add -> concat with images -> mean -> fc -> loss
//                         +-> (identity) ^
Graph branching() {
  GraphBuilder b("branching", 2, 4, 5);
  const TensorId stem = b.relu("relu", b.conv("stem", b.images(), 3, {}, false));
  const TensorId left = b.conv("left", stem, 3, {}, true);
  const TensorId joined = b.concat("concat", std::array{b.add("add", left, stem), b.images()});
  b.softmax_cross_entropy("loss", b.fully_connected("fc", b.global_avg_pool("mean", joined), 5));
  return std::move(b).build();
}

std::vector<std::string> backward_names(const Graph& graph) {
  std::vector<std::string> names;
  for (std::size_t i = graph.first_backward; i < graph.nodes.size(); ++i) names.push_back(graph.nodes[i].name);
  return names;
}

TEST(Differentiate, EmitsNodesInTheDocumentedOrder) {
  const Graph graph = differentiate(branching());
  EXPECT_EQ(backward_names(graph),
            (std::vector<std::string>{"loss.backward", "fc.backward_weights", "fc.backward_data", "mean.backward",
                                      "concat.backward", "left.backward_weights", "left.backward_data",
                                      "relu.accumulate", "relu.backward", "stem.backward_weights"}));
}

TEST(Differentiate, OrdersParametersByGradientProduction) {
  const Graph graph = differentiate(branching());
  std::vector<std::string> names;
  for (const Parameter& parameter : graph.parameters) {
    names.push_back(parameter.name);
    EXPECT_EQ(graph.tensor(parameter.gradient).shape, graph.tensor(parameter.value).shape);
    EXPECT_EQ(graph.tensor(parameter.gradient).role, TensorRole::kGradient);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"fc.weight", "fc.bias", "left.weight", "left.bias", "stem.weight"}));
}

TEST(Differentiate, AddSharesTheDiffAndImagesGetNone) {
  const Graph graph = differentiate(branching());
  const auto find = [&](const std::string& wanted) {
    return *std::find_if(graph.nodes.begin(), graph.nodes.end(), [&](const Node& n) { return n.name == wanted; });
  };
  const Node concat = find("concat.backward");
  ASSERT_EQ(concat.outputs.size(), 2U);
  EXPECT_EQ(concat.outputs[1], kNoTensor);
  // The sum's gradient is an input of left.backward_weights and of relu.accumulate. Neither reads a copy of it.
  const TensorId sum_diff = concat.outputs[0];
  EXPECT_EQ(find("left.backward_weights").inputs[1], sum_diff);
  const Node accumulate = find("relu.accumulate");
  ASSERT_EQ(accumulate.inputs.size(), 2U);
  EXPECT_EQ(accumulate.inputs[0], sum_diff);
  EXPECT_EQ(accumulate.inputs[1], find("left.backward_data").outputs[0]);
  EXPECT_EQ(accumulate.outputs[0], find("relu.backward").inputs[1]);
}

TEST(Differentiate, SkipsWhatNoParameterFeeds) {
  GraphBuilder b("fixed_front", 2, 4, 5);
  const TensorId x = b.max_pool("pool", b.relu("relu", b.images()), {.kernel_h = 2, .kernel_w = 2});
  b.softmax_cross_entropy("loss", b.fully_connected("fc", x, 5));
  EXPECT_EQ(backward_names(differentiate(std::move(b).build())),
            (std::vector<std::string>{"loss.backward", "fc.backward_weights"}));
}

TEST(Differentiate, RefusesToRunTwice) {
  expect_error(Errc::kInvalidArgument, {"branching", "already"}, [] { differentiate(differentiate(branching())); });
}

// In the graph of every network, no tensor is read before it is written, and every gradient is produced exactly once.
class DifferentiatedNetwork : public ::testing::TestWithParam<const char*> {};

TEST_P(DifferentiatedNetwork, IsWellFormed) {
  const Graph graph = differentiate(build_model({.model = GetParam(), .batch_size = 2}));
  std::set<TensorId> written;
  std::set<std::string> node_names;
  std::set<std::string> tensor_names;
  for (std::size_t id = 0; id < graph.tensors.size(); ++id) {
    EXPECT_TRUE(tensor_names.insert(graph.tensors[id].name).second) << graph.tensors[id].name;
    if (graph.tensors[id].producer == kNoNode) written.insert(static_cast<TensorId>(id));
  }
  std::vector<TensorId> gradients;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    EXPECT_TRUE(node_names.insert(node.name).second) << node.name;
    EXPECT_EQ(is_backward(node.kind), i >= graph.first_backward) << node.name;
    EXPECT_EQ(node.forward == kNoNode, i < graph.first_backward) << node.name;
    for (const TensorId input : node.inputs) EXPECT_TRUE(written.contains(input)) << node.name;
    for (const TensorId output : node.outputs) {
      if (output == kNoTensor) continue;
      EXPECT_TRUE(written.insert(output).second) << node.name << " writes a tensor again";
      EXPECT_EQ(graph.tensor(output).producer, static_cast<NodeId>(i));
      if (graph.tensor(output).role == TensorRole::kGradient) gradients.push_back(output);
    }
  }
  ASSERT_EQ(gradients.size(), graph.parameters.size());
  for (std::size_t p = 0; p < gradients.size(); ++p) EXPECT_EQ(graph.parameters[p].gradient, gradients[p]);
}

INSTANTIATE_TEST_SUITE_P(Zoo, DifferentiatedNetwork, ::testing::Values("vgg16", "resnet50", "resnet101", "inception3"));

}  // namespace
}  // namespace hvd::models::autodiff_test
