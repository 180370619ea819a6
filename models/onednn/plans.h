// What the forward pass of a layer leaves for its backward pass while compiling.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "models/onednn/compiler.h"

namespace hvd::models::onednn {

/// Rows of an image's diff, the rows of the input that they look at, and the weight gradient of the two.
struct Compiler::Band {
  ConvBackwardWeights backward_weights;
  std::int64_t first_input = 0, first_output = 0, outputs = 0;  ///< rows
};

struct Compiler::ConvPlan {
  ConvForward forward;
  std::optional<ConvBackwardData> backward_data;
  ConvBackwardWeights backward_weights;
  std::optional<Md> bias;
  /// In place of backward_weights where it is faster.
  std::optional<MatmulDesc> weights_as_product;
  std::vector<Band> bands;  ///< of one image
};

struct Compiler::LinearPlan {
  LinearForward forward;
  std::optional<LinearBackwardData> backward_data;
  LinearBackwardWeights backward_weights;
};

struct Compiler::NormPlan {
  NormForward forward;
  bool fuse_relu = false;
  Value mean, variance, workspace;
};

struct Compiler::PoolPlan {
  PoolForward forward;
  dnnl::algorithm algorithm{};
  Geometry geometry;
  Value workspace;
};

/// Geometry of a graph window in the library's terms.
inline Geometry geometry_of(const Window& window) {
  return {.kernel = {window.kernel_h, window.kernel_w},
          .strides = {window.stride_h, window.stride_w},
          .pad_low = {window.pad_top, window.pad_left},
          .pad_high = {window.pad_bottom, window.pad_right}};
}

}  // namespace hvd::models::onednn
