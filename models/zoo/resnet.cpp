#include <fmt/format.h>

#include <array>
#include <string>

#include "models/zoo/networks.h"

namespace hvd::models {
namespace {

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

}  // namespace

void resnet50(GraphBuilder& builder, std::int64_t classes) { resnet(builder, {3, 4, 6, 3}, classes); }
void resnet101(GraphBuilder& builder, std::int64_t classes) { resnet(builder, {3, 4, 23, 3}, classes); }

}  // namespace hvd::models
