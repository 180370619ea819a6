// Small networks for tests of the reference backend.
#pragma once

#include <array>

#include "models/graph/builder.h"

namespace hvd::models::testing {

inline Window square(int kernel, int stride, int pad) {
  return {.kernel_h = kernel,
          .kernel_w = kernel,
          .stride_h = stride,
          .stride_w = stride,
          .pad_top = pad,
          .pad_bottom = pad,
          .pad_left = pad,
          .pad_right = pad};
}

/// A network with every kind of operation, a residual, a concat, an activation that is used three times, and two
/// losses.
inline Graph every_operation(std::int64_t batch) {
  constexpr std::int64_t kClasses = 4;
  GraphBuilder b("every_operation", batch, 9, kClasses);
  TensorId x = b.conv("stem", b.images(), 4,
                      {.kernel_h = 3, .kernel_w = 3, .stride_h = 2, .stride_w = 2, .pad_bottom = 1}, false);
  x = b.relu("stem.relu", b.batch_norm("stem.bn", x));
  const TensorId wide = b.conv("wide", x, 4, {.kernel_h = 1, .kernel_w = 3, .pad_left = 1, .pad_right = 1}, true);
  const TensorId residual = b.relu("residual.relu", b.add("residual", wide, x));
  const TensorId pooled = b.avg_pool("avg", x, square(3, 1, 1));
  const TensorId joined =
      b.concat("concat", std::array{residual, pooled, b.max_pool("max", residual, square(3, 1, 1))});
  TensorId y = b.relu("fc1.relu", b.fully_connected("fc1", joined, 6));
  y = b.dropout("drop", y, 0.25);
  b.softmax_cross_entropy("loss", b.fully_connected("fc2", y, kClasses));
  TensorId aux = b.global_avg_pool("aux.mean", joined);
  b.softmax_cross_entropy("aux.loss", b.fully_connected("aux.fc", aux, kClasses), 0.4);
  return std::move(b).build();
}

/// A small VGG with dropout in the middle. It has no batch normalisation, so ranks may divide a batch among them.
inline Graph tiny_vgg(std::int64_t batch) {
  GraphBuilder b("tiny_vgg", batch, 8, 5);
  TensorId x = b.relu("relu1", b.conv("conv1", b.images(), 6, square(3, 1, 1), true));
  x = b.max_pool("pool1", x, square(2, 2, 0));
  x = b.relu("relu2", b.conv("conv2", x, 8, square(3, 1, 1), true));
  x = b.max_pool("pool2", x, square(2, 2, 0));
  x = b.relu("relu3", b.fully_connected("fc1", x, 24));
  x = b.dropout("drop", x, 0.5);
  b.softmax_cross_entropy("loss", b.fully_connected("fc2", x, 5));
  return std::move(b).build();
}

}  // namespace hvd::models::testing
