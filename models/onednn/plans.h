// The descriptors and values of a layer that the compiler stores with its forward pass and needs for its backward pass.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "models/onednn/compiler.h"

namespace hvd::models::onednn {

/// Some rows of an image's diff, the input rows that they depend on, and the primitive for their weight gradient.
struct Compiler::Band {
  ConvBackwardWeights backward_weights;
  std::int64_t first_input = 0, first_output = 0, outputs = 0;  ///< in rows
};

struct Compiler::ConvPlan {
  ConvForward forward;
  std::optional<ConvBackwardData> backward_data;
  ConvBackwardWeights backward_weights;
  std::optional<Md> bias;
  /// Used instead of backward_weights if the product is faster.
  std::optional<MatmulDesc> weights_as_product;
  std::vector<Band> bands;  ///< bands of one image, used instead of backward_weights; empty: none
};

struct Compiler::LinearPlan {
  LinearForward forward;
  std::optional<LinearBackwardData> backward_data;
  LinearBackwardWeights backward_weights;
};

struct Compiler::NormPlan {
  NormForward forward;
  bool fuse_relu = false;
  TensorView mean, variance, workspace;
};

struct Compiler::PoolPlan {
  PoolForward forward;
  dnnl::algorithm algorithm{};
  Geometry geometry;
  TensorView workspace;
};

/// Converts a graph window to the library's form.
inline Geometry geometry_of(const Window& window) {
  return {.kernel = {window.kernel_h, window.kernel_w},
          .strides = {window.stride_h, window.stride_w},
          .pad_low = {window.pad_top, window.pad_left},
          .pad_high = {window.pad_bottom, window.pad_right}};
}

}  // namespace hvd::models::onednn
