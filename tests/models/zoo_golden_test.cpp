// Compares the networks with published counts. Parameters and GMACs come from torchvision's model metadata (num_params
// and _ops), https://pytorch.org/vision/stable/models.html. The GMACs are multiply-adds of one forward pass. They cover
// convolutions and fully connected layers, including multiply-adds on padding, but not batch normalisation and pooling.
// The number of tensors is the length of torchvision's parameters().
#include <cmath>
#include <set>

#include "models/graph/builder.h"
#include "models/graph/cost.h"
#include "models/zoo/zoo.h"
#include "tests/models/testing.h"

namespace hvd::models::zoo_golden_test {
namespace {

using testing::expect_error;

struct Published {
  const char* model;
  bool auxiliary_head;
  std::int64_t parameters;
  std::size_t tensors;
  // The published figure has two decimals. It does not include the auxiliary head, which is used only in training.
  double gmac;
};

class PublishedCounts : public ::testing::TestWithParam<Published> {};

TEST_P(PublishedCounts, AreEqual) {
  const Published& published = GetParam();
  const Graph graph =
      build_model({.model = published.model, .batch_size = 1, .auxiliary_head = published.auxiliary_head});
  EXPECT_EQ(graph.parameter_count(), published.parameters);
  EXPECT_EQ(graph.parameters.size(), published.tensors);
  if (!published.auxiliary_head) {
    EXPECT_NEAR(forward_macs_per_image(graph) / 1e9, published.gmac, 0.005);  // half a unit of the last published digit
  }
}

INSTANTIATE_TEST_SUITE_P(Zoo, PublishedCounts,
                         ::testing::Values(Published{"vgg16", false, 138'357'544, 32, 15.47},
                                           Published{"resnet50", false, 25'557'032, 161, 4.09},
                                           Published{"resnet101", false, 44'549'160, 314, 7.80},
                                           Published{"inception3", false, 23'834'568, 284, 5.71},
                                           Published{"inception3", true, 27'161'264, 292, 5.71}));

TEST(Zoo, GridsAreThePapers) {
  const auto shape_of = [](const ModelSpec& spec, const std::string& tensor) {
    const Graph graph = build_model(spec);
    for (const TensorDesc& desc : graph.tensors) {
      if (desc.name == tensor) return desc.shape;
    }
    return Shape();
  };
  EXPECT_EQ(shape_of({.model = "inception3", .batch_size = 1}, "Mixed_5d:y"), (Shape{1, 35, 35, 288}));
  EXPECT_EQ(shape_of({.model = "inception3", .batch_size = 1}, "Mixed_6e:y"), (Shape{1, 17, 17, 768}));
  EXPECT_EQ(shape_of({.model = "inception3", .batch_size = 1}, "Mixed_7c:y"), (Shape{1, 8, 8, 2048}));
  EXPECT_EQ(shape_of({.model = "resnet101", .batch_size = 1}, "layer4.2.relu3:y"), (Shape{1, 7, 7, 2048}));
  EXPECT_EQ(shape_of({.model = "vgg16", .batch_size = 1}, "features.30:y"), (Shape{1, 7, 7, 512}));
}

TEST(Zoo, TheStrideOfABottleneckSitsInThe3x3) {
  const Graph graph = build_model({.model = "resnet50", .batch_size = 1});
  for (const Node& node : graph.nodes) {
    if (!node.name.starts_with("layer3.0.conv")) continue;
    EXPECT_EQ(std::get<Window>(node.attr).stride_h, node.name == "layer3.0.conv2" ? 2 : 1) << node.name;
  }
}

TEST(Zoo, OtherImageSizesFitAndChangeVggsClassifierOnly) {
  for (const ModelInfo& model : model_catalogue()) {
    const std::int64_t published = build_model({.model = model.name, .batch_size = 1}).parameter_count();
    for (const std::int64_t size : {model.minimum_image_size, std::int64_t{160}, std::int64_t{331}}) {
      const Graph graph = build_model({.model = model.name, .batch_size = 1, .image_size = size});
      const std::int64_t cells = size / 32;
      const std::int64_t change = model.name == "vgg16" ? 4096 * 512 * (cells * cells - 49) : 0;
      EXPECT_EQ(graph.parameter_count(), published + change) << model.name << " at " << size;
    }
  }
}

TEST(Zoo, AuxiliaryLossWeighsTwoFifthsAndComesSecond) {
  const Graph graph = build_model({.model = "inception3", .batch_size = 1, .auxiliary_head = true});
  ASSERT_EQ(graph.losses.size(), 2U);
  EXPECT_EQ(graph.node(graph.losses[0]).name, "loss");
  EXPECT_EQ(std::get<LossAttr>(graph.node(graph.losses[0]).attr).weight, 1.0);
  EXPECT_EQ(std::get<LossAttr>(graph.node(graph.losses[1]).attr).weight, 0.4);
}

TEST(Zoo, NamesAreTorchvisionPaths) {
  const auto has = [](const char* model, const std::string& name) {
    const Graph graph = build_model({.model = model, .batch_size = 1});
    for (const Parameter& parameter : graph.parameters) {
      if (parameter.name == name) return true;
    }
    return false;
  };
  EXPECT_TRUE(has("resnet101", "layer3.22.conv2.weight"));
  EXPECT_TRUE(has("resnet101", "layer1.0.downsample.1.gamma"));
  EXPECT_TRUE(has("vgg16", "features.28.weight"));
  EXPECT_TRUE(has("inception3", "Mixed_6b.branch7x7_2.bn.gamma"));
}

TEST(Zoo, AliasesNameTheSameNetwork) {
  EXPECT_EQ(find_model("inception_v3").name, "inception3");
  EXPECT_EQ(build_model({.model = "inception_v3", .batch_size = 1}).model, "inception3");
}

TEST(Zoo, RefusesWhatItCannotBuild) {
  expect_error(Errc::kInvalidArgument, {"resnet18", "inception3", "resnet50", "resnet101", "vgg16", "inception_v3"},
               [] { build_model({.model = "resnet18", .batch_size = 1}); });
  expect_error(Errc::kInvalidArgument, {"vgg16", "batch size is 0"},
               [] { build_model({.model = "vgg16", .batch_size = 0}); });
  expect_error(Errc::kInvalidArgument, {"batch size is 100000"},
               [] { build_model({.model = "vgg16", .batch_size = 100000}); });
  expect_error(Errc::kInvalidArgument, {"vgg16", "32x32", "31"},
               [] { build_model({.model = "vgg16", .batch_size = 1, .image_size = 31}); });
  expect_error(Errc::kInvalidArgument, {"inception3", "75x75", "74"},
               [] { build_model({.model = "inception3", .batch_size = 1, .image_size = 74}); });
  expect_error(Errc::kInvalidArgument, {"at least 32x32", "-5"},
               [] { build_model({.model = "resnet50", .batch_size = 1, .image_size = -5}); });
  expect_error(Errc::kInvalidArgument, {"auxiliary", "299x299"}, [] {
    build_model({.model = "inception3", .batch_size = 1, .image_size = 298, .auxiliary_head = true});
  });
  expect_error(Errc::kInvalidArgument, {"resnet50", "auxiliary"},
               [] { build_model({.model = "resnet50", .batch_size = 1, .auxiliary_head = true}); });
}

// The documented minimum size is exact: if images have one pixel less, the layers do not fit.
TEST(Zoo, InceptionsMinimumIsWhatItsLayersNeed) {
  const auto grid = [](std::int64_t x) {  // 3x3 layers without padding, and poolings, as in table 1 of the paper
    x = (x - 3) / 2 + 1;                  // Conv2d_1a
    x = x - 2;                            // Conv2d_2a
    x = (x - 3) / 2 + 1;                  // maxpool1
    x = x - 2;                            // Conv2d_4a
    x = (x - 3) / 2 + 1;                  // maxpool2
    return (x - 3) / 2 + 1;               // Mixed_6a
  };
  EXPECT_EQ(grid(75), 3);  // Mixed_7a's stride-2 3x3 window just fits
  EXPECT_EQ(grid(74), 2);
  EXPECT_EQ(grid(299), 17);  // (17 - 5) / 3 + 1 = 5: the auxiliary head's 5x5 window just fits
  EXPECT_EQ(grid(298), 16);
}

}  // namespace
}  // namespace hvd::models::zoo_golden_test
