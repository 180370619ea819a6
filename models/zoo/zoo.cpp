// Builds the networks. build_model() checks the arguments and calls one of the functions that build a network.
// Node names follow torchvision's module paths, so that our tensors can be compared by name with those of torchvision.
#include "models/zoo/zoo.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

#include "engine/base/error.h"
#include "models/graph/builder.h"

namespace hvd::models {
namespace {

// Returns a window. If `same`, it has padding, and with an odd kernel at stride 1 the output is as large as the input;
// else the window has no padding.
Window window(int kernel_h, int kernel_w, int stride, bool same) {
  const int pad_h = same ? kernel_h / 2 : 0;
  const int pad_w = same ? kernel_w / 2 : 0;
  return {.kernel_h = kernel_h,
          .kernel_w = kernel_w,
          .stride_h = stride,
          .stride_w = stride,
          .pad_top = pad_h,
          .pad_bottom = pad_h,
          .pad_left = pad_w,
          .pad_right = pad_w};
}

// Blocks are named as in torchvision. The letters are those of torchvision's classes InceptionA to InceptionE.
class Inception {
 public:
  explicit Inception(GraphBuilder& builder) : b_(builder) {}

  /// Adds a convolution without bias, a batch normalisation (epsilon 1e-3) and a ReLU.
  TensorId unit(const std::string& name, TensorId x, std::int64_t channels, const Window& w) {
    TensorId y = b_.conv(name + ".conv", x, channels, w, false);
    y = b_.batch_norm(name + ".bn", y, {.epsilon = 1e-3});
    return b_.relu(name + ".relu", y);
  }
  TensorId same(const std::string& name, TensorId x, std::int64_t channels, int kernel_h, int kernel_w) {
    return unit(name, x, channels, window(kernel_h, kernel_w, 1, true));
  }
  TensorId reduce(const std::string& name, TensorId x, std::int64_t channels) {
    return unit(name, x, channels, window(3, 3, 2, false));
  }
  TensorId pooled(const std::string& name, TensorId x, std::int64_t channels) {
    const TensorId pool = b_.avg_pool(name + ".avgpool", x, window(3, 3, 1, true));
    return same(name + ".branch_pool", pool, channels, 1, 1);
  }

  TensorId block_a(const std::string& name, TensorId x, std::int64_t pool_channels) {
    const TensorId b1 = same(name + ".branch1x1", x, 64, 1, 1);
    TensorId b5 = same(name + ".branch5x5_1", x, 48, 1, 1);
    b5 = same(name + ".branch5x5_2", b5, 64, 5, 5);
    TensorId b3 = same(name + ".branch3x3dbl_1", x, 64, 1, 1);
    b3 = same(name + ".branch3x3dbl_2", b3, 96, 3, 3);
    b3 = same(name + ".branch3x3dbl_3", b3, 96, 3, 3);
    return b_.concat(name, std::array{b1, b5, b3, pooled(name, x, pool_channels)});
  }

  TensorId block_b(const std::string& name, TensorId x) {
    const TensorId b3 = reduce(name + ".branch3x3", x, 384);
    TensorId dbl = same(name + ".branch3x3dbl_1", x, 64, 1, 1);
    dbl = same(name + ".branch3x3dbl_2", dbl, 96, 3, 3);
    dbl = reduce(name + ".branch3x3dbl_3", dbl, 96);
    return b_.concat(name, std::array{b3, dbl, b_.max_pool(name + ".maxpool", x, window(3, 3, 2, false))});
  }

  TensorId block_c(const std::string& name, TensorId x, std::int64_t c7) {
    const TensorId b1 = same(name + ".branch1x1", x, 192, 1, 1);
    TensorId b7 = same(name + ".branch7x7_1", x, c7, 1, 1);
    b7 = same(name + ".branch7x7_2", b7, c7, 1, 7);
    b7 = same(name + ".branch7x7_3", b7, 192, 7, 1);
    TensorId dbl = same(name + ".branch7x7dbl_1", x, c7, 1, 1);
    dbl = same(name + ".branch7x7dbl_2", dbl, c7, 7, 1);
    dbl = same(name + ".branch7x7dbl_3", dbl, c7, 1, 7);
    dbl = same(name + ".branch7x7dbl_4", dbl, c7, 7, 1);
    dbl = same(name + ".branch7x7dbl_5", dbl, 192, 1, 7);
    return b_.concat(name, std::array{b1, b7, dbl, pooled(name, x, 192)});
  }

  TensorId block_d(const std::string& name, TensorId x) {
    TensorId b3 = same(name + ".branch3x3_1", x, 192, 1, 1);
    b3 = reduce(name + ".branch3x3_2", b3, 320);
    TensorId b7 = same(name + ".branch7x7x3_1", x, 192, 1, 1);
    b7 = same(name + ".branch7x7x3_2", b7, 192, 1, 7);
    b7 = same(name + ".branch7x7x3_3", b7, 192, 7, 1);
    b7 = reduce(name + ".branch7x7x3_4", b7, 192);
    return b_.concat(name, std::array{b3, b7, b_.max_pool(name + ".maxpool", x, window(3, 3, 2, false))});
  }

  // torchvision concatenates the halves of each split branch, and then all branches. One concat of all parts gives the
  // same tensor.
  TensorId block_e(const std::string& name, TensorId x) {
    const TensorId b1 = same(name + ".branch1x1", x, 320, 1, 1);
    const TensorId b3 = same(name + ".branch3x3_1", x, 384, 1, 1);
    const TensorId b3a = same(name + ".branch3x3_2a", b3, 384, 1, 3);
    const TensorId b3b = same(name + ".branch3x3_2b", b3, 384, 3, 1);
    TensorId dbl = same(name + ".branch3x3dbl_1", x, 448, 1, 1);
    dbl = same(name + ".branch3x3dbl_2", dbl, 384, 3, 3);
    const TensorId dbl_a = same(name + ".branch3x3dbl_3a", dbl, 384, 1, 3);
    const TensorId dbl_b = same(name + ".branch3x3dbl_3b", dbl, 384, 3, 1);
    return b_.concat(name, std::array{b1, b3a, b3b, dbl_a, dbl_b, pooled(name, x, 192)});
  }

  // With images of 299 pixels, the 5x5 kernel of conv1 covers the whole pooled grid. With larger images, the output has
  // several positions, which are averaged as in torchvision.
  TensorId auxiliary_logits(TensorId grid, std::int64_t classes) {
    TensorId x = b_.avg_pool("AuxLogits.avgpool", grid, window(5, 5, 3, false));
    x = same("AuxLogits.conv0", x, 128, 1, 1);
    x = unit("AuxLogits.conv1", x, 768, window(5, 5, 1, false));
    return b_.fully_connected("AuxLogits.fc", b_.global_avg_pool("AuxLogits.global_avgpool", x), classes);
  }

 private:
  GraphBuilder& b_;
};

/// Inception V3. Source: Szegedy et al., arXiv:1512.00567; torchvision/models/inception.py.
void inception3(GraphBuilder& builder, std::int64_t classes, bool auxiliary_head) {
  Inception net(builder);
  const Window pool = window(3, 3, 2, false);
  TensorId x = net.reduce("Conv2d_1a_3x3", builder.images(), 32);
  x = net.unit("Conv2d_2a_3x3", x, 32, window(3, 3, 1, false));
  x = net.same("Conv2d_2b_3x3", x, 64, 3, 3);
  x = builder.max_pool("maxpool1", x, pool);
  x = net.same("Conv2d_3b_1x1", x, 80, 1, 1);
  x = net.unit("Conv2d_4a_3x3", x, 192, window(3, 3, 1, false));
  x = builder.max_pool("maxpool2", x, pool);
  x = net.block_a("Mixed_5b", x, 32);
  x = net.block_a("Mixed_5c", x, 64);
  x = net.block_a("Mixed_5d", x, 64);
  x = net.block_b("Mixed_6a", x);
  x = net.block_c("Mixed_6b", x, 128);
  x = net.block_c("Mixed_6c", x, 160);
  x = net.block_c("Mixed_6d", x, 160);
  x = net.block_c("Mixed_6e", x, 192);
  const TensorId grid = x;
  x = net.block_d("Mixed_7a", x);
  x = net.block_e("Mixed_7b", x);
  x = net.block_e("Mixed_7c", x);
  x = builder.global_avg_pool("avgpool", x);
  x = builder.dropout("dropout", x, 0.5);
  builder.softmax_cross_entropy("loss", builder.fully_connected("fc", x, classes));
  if (auxiliary_head) {
    // The head comes last in forward. Its gradients therefore come first in backward, and their all-reduce overlaps the
    // rest of backward.
    constexpr double kAuxiliaryWeight = 0.4;  // torchvision's training reference and TF-slim
    builder.softmax_cross_entropy("AuxLogits.loss", net.auxiliary_logits(grid, classes), kAuxiliaryWeight);
  }
}

Window square(int kernel, int stride, int pad) {
  return {.kernel_h = kernel,
          .kernel_w = kernel,
          .stride_h = stride,
          .stride_w = stride,
          .pad_top = pad,
          .pad_bottom = pad,
          .pad_left = pad,
          .pad_right = pad};
}

TensorId conv_bn(GraphBuilder& b, const std::string& conv, const std::string& bn, TensorId x, std::int64_t channels,
                 const Window& window) {
  return b.batch_norm(bn, b.conv(conv, x, channels, window, false));
}

TensorId bottleneck(GraphBuilder& b, const std::string& name, TensorId x, std::int64_t width, int stride) {
  constexpr std::int64_t kExpansion = 4;
  const std::int64_t out_channels = kExpansion * width;
  TensorId y = conv_bn(b, name + ".conv1", name + ".bn1", x, width, square(1, 1, 0));
  y = b.relu(name + ".relu1", y);
  y = conv_bn(b, name + ".conv2", name + ".bn2", y, width, square(3, stride, 1));
  y = b.relu(name + ".relu2", y);
  y = conv_bn(b, name + ".conv3", name + ".bn3", y, out_channels, square(1, 1, 0));
  TensorId shortcut = x;
  if (stride != 1 || b.shape(x)[3] != out_channels) {
    shortcut = conv_bn(b, name + ".downsample.0", name + ".downsample.1", x, out_channels, square(1, stride, 0));
  }
  return b.relu(name + ".relu3", b.add(name + ".add", y, shortcut));
}

void resnet(GraphBuilder& b, const std::array<int, 4>& blocks, std::int64_t classes) {
  TensorId x = conv_bn(b, "conv1", "bn1", b.images(), 64, square(7, 2, 3));
  x = b.relu("relu", x);
  x = b.max_pool("maxpool", x, square(3, 2, 1));
  std::int64_t width = 64;
  for (std::size_t stage = 0; stage < blocks.size(); ++stage, width *= 2) {
    for (int block = 0; block < blocks.at(stage); ++block) {
      const int stride = stage > 0 && block == 0 ? 2 : 1;
      x = bottleneck(b, fmt::format("layer{}.{}", stage + 1, block), x, width, stride);
    }
  }
  x = b.global_avg_pool("avgpool", x);
  b.softmax_cross_entropy("loss", b.fully_connected("fc", x, classes));
}

/// Bottleneck residual networks, version 1.5: the 3x3 convolution has the stride, as in torchvision.
/// Source: He et al., arXiv:1512.03385, table 1; torchvision/models/resnet.py.
void resnet50(GraphBuilder& builder, std::int64_t classes) { resnet(builder, {3, 4, 6, 3}, classes); }
void resnet101(GraphBuilder& builder, std::int64_t classes) { resnet(builder, {3, 4, 23, 3}, classes); }

/// VGG configuration D (16 weight layers). Source: Simonyan and Zisserman, arXiv:1409.1556, table 1.
void vgg16(GraphBuilder& builder, std::int64_t classes) {
  constexpr Window kConv3{.kernel_h = 3, .kernel_w = 3, .pad_top = 1, .pad_bottom = 1, .pad_left = 1, .pad_right = 1};
  constexpr Window kPool{.kernel_h = 2, .kernel_w = 2, .stride_h = 2, .stride_w = 2};
  struct ConvBlock {
    int convolutions;
    std::int64_t channels;
  };
  constexpr ConvBlock kStages[] = {{2, 64}, {2, 128}, {3, 256}, {3, 512}, {3, 512}};
  constexpr std::int64_t kHidden = 4096;

  int module = 0;  // torchvision numbers all convolutions, activations and pools of "features" consecutively
  const auto next = [&module] { return "features." + std::to_string(module++); };
  TensorId x = builder.images();
  for (const ConvBlock& stage : kStages) {
    for (int i = 0; i < stage.convolutions; ++i) {
      x = builder.conv(next(), x, stage.channels, kConv3, true);
      x = builder.relu(next(), x);
    }
    x = builder.max_pool(next(), x, kPool);
  }
  // The first fully connected layer has a weight for each element of the h/32 x w/32 x 512 grid, whatever the image
  // size is.
  x = builder.fully_connected("classifier.0", x, kHidden, Init::kNormal001);
  x = builder.relu("classifier.1", x);
  x = builder.dropout("classifier.2", x, 0.5);
  x = builder.fully_connected("classifier.3", x, kHidden, Init::kNormal001);
  x = builder.relu("classifier.4", x);
  x = builder.dropout("classifier.5", x, 0.5);
  x = builder.fully_connected("classifier.6", x, classes, Init::kNormal001);
  builder.softmax_cross_entropy("loss", x);
}

// The auxiliary head's 5x5 convolution needs a 17x17 grid. Smaller images than 299 x 299 pixels have a smaller grid.
constexpr std::int64_t kAuxiliaryMinimumImageSize = 299;

}  // namespace

const std::vector<ModelInfo>& model_catalogue() {
  // Built once, never changed.
  static const std::vector<ModelInfo> catalogue{
      {.name = "inception3",
       .aliases = {"inception_v3", "inceptionv3"},
       .default_image_size = 299,
       .minimum_image_size = 75},
      {.name = "resnet50", .aliases = {"resnet50_v1.5"}, .default_image_size = 224, .minimum_image_size = 32},
      {.name = "resnet101", .aliases = {"resnet101_v1.5"}, .default_image_size = 224, .minimum_image_size = 32},
      {.name = "vgg16", .aliases = {"vgg-16"}, .default_image_size = 224, .minimum_image_size = 32},
  };
  return catalogue;
}

const ModelInfo& find_model(std::string_view name) {
  std::string known;
  for (const ModelInfo& info : model_catalogue()) {
    if (info.name == name || std::find(info.aliases.begin(), info.aliases.end(), name) != info.aliases.end()) {
      return info;
    }
    known += (known.empty() ? "" : ", ") + info.name;
    for (const std::string& alias : info.aliases) known += fmt::format(" (also {})", alias);
  }
  throw Error(Errc::kInvalidArgument, fmt::format("unknown model '{}'; known models: {}", name, known));
}

Graph build_model(const ModelSpec& spec) {
  const ModelInfo& info = find_model(spec.model);
  const std::int64_t image_size = spec.image_size == 0 ? info.default_image_size : spec.image_size;
  if (spec.auxiliary_head && info.name != "inception3") {
    throw Error(Errc::kInvalidArgument, info.name + " has no auxiliary head; only inception3 has one");
  }
  const std::int64_t minimum = spec.auxiliary_head ? kAuxiliaryMinimumImageSize : info.minimum_image_size;
  if (image_size < minimum) {
    throw Error(Errc::kInvalidArgument,
                fmt::format("{0}{1} needs images of at least {2}x{2}, got {3}", info.name,
                            spec.auxiliary_head ? " with its auxiliary head" : "", minimum, image_size));
  }
  GraphBuilder builder(info.name, spec.batch_size, image_size, spec.classes);
  if (info.name == "vgg16") vgg16(builder, spec.classes);
  if (info.name == "resnet50") resnet50(builder, spec.classes);
  if (info.name == "resnet101") resnet101(builder, spec.classes);
  if (info.name == "inception3") inception3(builder, spec.classes, spec.auxiliary_head);
  return std::move(builder).build();
}

}  // namespace hvd::models
