// Small networks. Together they contain every graph pattern that fusion must handle.
#pragma once

#include <array>
#include <string>

#include "models/graph/builder.h"
#include "tests/models/small_graphs.h"

namespace hvd::models::cudnn::testing {

using models::testing::square;

inline TensorId conv_norm_relu(GraphBuilder& b, const std::string& name, TensorId x, std::int64_t channels,
                               const Window& window) {
  return b.relu(name + ".relu", b.batch_norm(name + ".bn", b.conv(name, x, channels, window, false)));
}

/// A stem with a max pool, and three blocks. The first has a convolution as shortcut, the second has the identity, and
/// the third has a convolution with stride 2. All channel counts are multiples of 8, which cuDNN's tensor-core engines
/// accept.
inline Graph tiny_resnet(std::int64_t batch, std::int64_t size = 16, std::int64_t width = 8) {
  GraphBuilder b("tiny_resnet", batch, size, 5);
  TensorId x = conv_norm_relu(b, "stem", b.images(), width, square(3, 2, 1));
  x = b.max_pool("maxpool", x, square(3, 2, 1));
  for (int block = 0; block < 3; ++block) {
    const std::string name = "block" + std::to_string(block);
    const int stride = block == 2 ? 2 : 1;
    const std::int64_t out = block == 2 ? 4 * width : 2 * width;
    TensorId y = conv_norm_relu(b, name + ".conv1", x, width, square(1, 1, 0));
    y = conv_norm_relu(b, name + ".conv2", y, width, square(3, stride, 1));
    y = b.batch_norm(name + ".bn3", b.conv(name + ".conv3", y, out, square(1, 1, 0), false));
    TensorId shortcut = x;
    if (block != 1) {
      shortcut = b.batch_norm(name + ".bn0", b.conv(name + ".conv0", x, out, square(1, stride, 0), false));
    }
    x = b.relu(name + ".relu", b.add(name + ".add", y, shortcut));
  }
  b.softmax_cross_entropy("loss", b.fully_connected("fc", b.global_avg_pool("avgpool", x), 5));
  return std::move(b).build();
}

/// Two blocks of concatenated branches. One branch forks, as in Inception's last blocks, and others have an average or
/// a max pool. One activation is read five times. There are two losses.
inline Graph tiny_inception(std::int64_t batch, std::int64_t size = 13, std::int64_t width = 8) {
  GraphBuilder b("tiny_inception", batch, size, 5);
  TensorId x = conv_norm_relu(b, "stem1", b.images(), width, square(3, 2, 0));
  x = conv_norm_relu(b, "stem2", x, 2 * width, square(3, 1, 1));
  const auto block = [&](const std::string& name, TensorId in) {
    const TensorId b1 = conv_norm_relu(b, name + ".b1", in, width, square(1, 1, 0));
    const TensorId b3 = conv_norm_relu(b, name + ".b3", in, width, square(1, 1, 0));
    const TensorId b3a =
        conv_norm_relu(b, name + ".b3a", b3, width, {.kernel_h = 1, .kernel_w = 3, .pad_left = 1, .pad_right = 1});
    const TensorId b3b =
        conv_norm_relu(b, name + ".b3b", b3, width, {.kernel_h = 3, .kernel_w = 1, .pad_top = 1, .pad_bottom = 1});
    const TensorId bp =
        conv_norm_relu(b, name + ".bp", b.avg_pool(name + ".avg", in, square(3, 1, 1)), width, square(1, 1, 0));
    const TensorId max = b.max_pool(name + ".max", in, square(3, 1, 1));
    return b.concat(name, std::array{b1, b3a, b3b, bp, max});
  };
  x = block("mixed1", x);
  const TensorId grid = x;
  x = block("mixed2", x);
  TensorId y = b.dropout("dropout", b.global_avg_pool("avgpool", x), 0.25);
  b.softmax_cross_entropy("loss", b.fully_connected("fc", y, 5));
  const TensorId aux = b.global_avg_pool("aux.mean", conv_norm_relu(b, "aux.conv", grid, width, square(1, 1, 0)));
  b.softmax_cross_entropy("aux.loss", b.fully_connected("aux.fc", aux, 5), 0.4);
  return std::move(b).build();
}

}  // namespace hvd::models::cudnn::testing
