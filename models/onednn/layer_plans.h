// For each layer, the descriptors and values that the compiler stores when it compiles the forward pass, and needs when
// it compiles the backward pass.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "models/onednn/compat.h"
#include "models/onednn/compiler.h"

namespace hvd::models::onednn {

/// A band: some rows of an image's output, the input rows that these depend on, and the primitive that computes the
/// band's part of the weight gradient.
struct Compiler::Band {
  ConvBackwardWeights backward_weights;
  std::int64_t first_input = 0, first_output = 0, outputs = 0;  ///< first input row, first output row, output rows
};

struct Compiler::ConvPlan {
  ConvForward forward;
  std::optional<ConvBackwardData> backward_data;
  ConvBackwardWeights backward_weights;
  std::optional<Md> bias;
  /// The matrix product that is used instead of backward_weights if it is faster.
  std::optional<MatmulDesc> weights_as_product;
  std::vector<Band> bands;  ///< bands of one image, used instead of backward_weights; empty: no bands are used
};

struct Compiler::LinearPlan {
  LinearForward forward;
  LinearBackwardData backward_data;
  LinearBackwardWeights backward_weights;
  /// Returns true if a pass has only reference code (first_compiled()).
  [[nodiscard]] bool is_reference() const {
    return onednn::is_reference(forward.impl_info_str()) || onednn::is_reference(backward_data.impl_info_str()) ||
           onednn::is_reference(backward_weights.impl_info_str());
  }
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
