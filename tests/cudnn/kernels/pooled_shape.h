// Computes the output shape of pools and convolutions.
#pragma once

#include "models/graph/graph.h"

namespace hvd::models::cudnn::kernels {

/// Returns the output shape of a pool with window `w`. `x` is the shape {n, h, w, channels} of the images.
inline Shape pooled_shape(const Shape& x, const Window& w) {
  return {x[0], (x[1] + w.pad_top + w.pad_bottom - w.kernel_h) / w.stride_h + 1,
          (x[2] + w.pad_left + w.pad_right - w.kernel_w) / w.stride_w + 1, x[3]};
}

}  // namespace hvd::models::cudnn::kernels
