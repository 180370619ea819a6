#include <algorithm>
#include <array>

#include "models/graph/builder.h"
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

}  // namespace
}  // namespace hvd::models::graph_test
