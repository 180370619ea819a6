#include <string>

#include "models/zoo/networks.h"

namespace hvd::models {

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

}  // namespace hvd::models
