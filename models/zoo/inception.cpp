#include <array>
#include <string>

#include "models/zoo/networks.h"

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

}  // namespace

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

}  // namespace hvd::models
