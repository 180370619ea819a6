// Pools, as row bodies (element.h). Their rows are output pixels, or small parts of the output image if neighbouring
// pixels share inputs. A row body reads all that a row needs before it computes anything, so that the reads overlap.
#pragma once

#include <cstdint>

#include "models/cudnn/kernels/element.h"

namespace hvd::models::cudnn::kernels {

/// Base of the pools' row bodies, which keep nothing from row to row.
template <int V>
struct PoolBody {
  static constexpr int kWidth = V, kRowsAtOnce = 1, kBlocks = 2;
  using Channels = Nothing;
  using Row = Nothing;
  HVD_HOST_DEVICE Channels channels(std::int64_t /*channel*/) const { return {}; }
  HVD_HOST_DEVICE Row load(const Place& /*place*/) const { return {}; }
};

/// The position of pixel `row` of a batch. A batch may have more pixels than 32 bits can count, but one image may not
/// have so many.
struct Pixel {
  std::int64_t n;
  int h, w;
  HVD_HOST_DEVICE Pixel(std::int64_t planes_h, std::int64_t planes_w, std::int64_t row) {
    const std::int64_t line = quotient(row, planes_w);
    n = quotient(line, planes_h);
    h = static_cast<int>(line - n * planes_h);
    w = static_cast<int>(row - line * planes_w);
  }
};

/// The rows of one image of a batch. The sizes have 32 bits, because every element of a window is compared with them.
struct Plane {
  std::int64_t first;  ///< row of the plane's first pixel
  int h, w;
  HVD_HOST_DEVICE Plane(const Image& image, std::int64_t n)
      : first(n * image.h * image.w), h(static_cast<int>(image.h)), w(static_cast<int>(image.w)) {}
  HVD_HOST_DEVICE bool holds(int at_h, int at_w) const { return at_h >= 0 && at_w >= 0 && at_h < h && at_w < w; }
  HVD_HOST_DEVICE std::int64_t row(int at_h, int at_w) const { return first + std::int64_t{at_h} * w + at_w; }
};

HVD_HOST_DEVICE inline int clamped(int at, int size) { return at < 0 ? 0 : at < size ? at : size - 1; }

/// The first and the last output position, along one axis, whose windows cover input position `at`.
struct Cover {
  int first, last;
  HVD_HOST_DEVICE Cover(int at, int kernel, int stride, int pad, std::int64_t outputs) {
    const int from = at + pad - kernel + 1;
    first = from <= 0 ? 0 : (from + stride - 1) / stride;
    last = (at + pad) / stride;
    if (last >= outputs) last = static_cast<int>(outputs) - 1;
  }
};

}  // namespace hvd::models::cudnn::kernels
