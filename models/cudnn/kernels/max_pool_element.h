// Max pools and their backward, as row bodies (pool_element.h).
#pragma once

#include <cstdint>

#include "models/cudnn/kernels/pool_element.h"

namespace hvd::models::cudnn::kernels {

/// The largest element of a window so far, and the element's index in the window.
template <int V>
struct Largest {
  float value[V];
  int index[V];

  template <class T>
  HVD_HOST_DEVICE Largest(const Vector<T, V>& first, int at) {
    for (int k = 0; k < V; ++k) {
      value[k] = to_float(first.at[k]);
      index[k] = at;
    }
  }
  template <class T>
  HVD_HOST_DEVICE void take(const Vector<T, V>& tap, int at) {
    for (int k = 0; k < V; ++k) {
      const float v = to_float(tap.at[k]);
      const bool larger = v > value[k];
      value[k] = larger ? v : value[k];
      index[k] = larger ? at : index[k];
    }
  }
};

/// kKernel: height and width of a square window, or 0 for any window.
template <class T, int V, int kKernel>
struct MaxPoolBody : PoolBody<V> {
  Window window;
  Image x, y;
  std::uint8_t* where;  // rows without gaps

  MaxPoolBody(const Window& pool_window, const Image& from, const Image& to, std::uint8_t* index)
      : window(pool_window), x(from), y(to), where(index) {}

  HVD_HOST_DEVICE void store(const Place& place, Nothing /*channels*/, Nothing /*row*/) const {
    const Pixel at(y.h, y.w, place.row);
    const int top = at.h * window.stride_h - window.pad_top, left = at.w * window.stride_w - window.pad_left;
    const int first_h = top < 0 ? -top : 0, first_w = left < 0 ? -left : 0;  // maxima exclude padding
    const auto height = static_cast<int>(x.h), width = static_cast<int>(x.w);
    const std::int64_t pitch = x.matrix.pitch, line = x.w * pitch, first = first_h * line + first_w * pitch;
    const T* const corner =
        static_cast<const T*>(x.matrix.data) + (((at.n * x.h + top) * x.w + left) * pitch + place.channel);
    // A tap in the padding reads the window's first tap in the image instead, which cannot change the maximum.
    const auto tap = [&](int kh, int kw) {
      const bool real = kh >= first_h && kw >= first_w && kh < height - top && kw < width - left;
      const std::int64_t offset = kh * line + kw * pitch;
      return kernels::load<T, V>(corner, real ? offset : first);
    };
    if constexpr (kKernel > 0) {
      Vector<T, V> taps[kKernel * kKernel];
      HVD_UNROLL
      for (int i = 0; i < kKernel * kKernel; ++i) taps[i] = tap(i / kKernel, i % kKernel);
      Largest<V> largest(taps[0], first_h * kKernel + first_w);
      HVD_UNROLL
      for (int i = 1; i < kKernel * kKernel; ++i) largest.take(taps[i], i);
      write(place, largest);
    } else {
      Largest<V> largest(tap(0, 0), first_h * window.kernel_w + first_w);
      for (int kh = 0; kh < window.kernel_h; ++kh) {
        for (int kw = 0; kw < window.kernel_w; ++kw) largest.take(tap(kh, kw), kh * window.kernel_w + kw);
      }
      write(place, largest);
    }
  }

 private:
  HVD_HOST_DEVICE void write(const Place& place, const Largest<V>& largest) const {
    Vector<std::uint8_t, V> index;
    for (int k = 0; k < V; ++k) index.at[k] = static_cast<std::uint8_t>(largest.index[k]);
    store_row<T, V>(y.matrix, place, largest.value);
    kernels::store<std::uint8_t, V>(where, place.row * y.matrix.channels + place.channel, index);
  }
};

/// The inputs of a max pool's backward.
struct MaxPoolDiff {
  Window window;
  const std::uint8_t* where;
  Image dy;
  Matrix pooled;  ///< the pool's output, if there is a rectifier before the pool; else data == nullptr
};

/// The diff of one window's output, and the index of the element that receives it.
template <class T, int V>
struct WindowDiff {
  Vector<std::uint8_t, V> index;
  Vector<T, V> diff, test;

  HVD_HOST_DEVICE static WindowDiff load(const MaxPoolDiff& pool, std::int64_t row, std::int64_t channel) {
    const Place place{row, channel};
    WindowDiff made;
    made.index = kernels::load<std::uint8_t, V>(pool.where, row * pool.dy.matrix.channels + channel);
    made.diff = kernels::load<T, V>(pool.dy.matrix.data, place.in(pool.dy.matrix));
    if (pool.pooled.data != nullptr) made.test = kernels::load<T, V>(pool.pooled.data, place.in(pool.pooled));
    return made;
  }
  /// Sets `value` to the diff, after the rectifier's backward if there is a rectifier.
  HVD_HOST_DEVICE void values(const MaxPoolDiff& pool, float (&value)[V]) const {
    for (int k = 0; k < V; ++k) value[k] = to_float(diff.at[k]);
    if (pool.pooled.data != nullptr) mask(test, value);
  }
};

/// The backward for any window. Each element of dx adds up the diffs of the windows in which it is the maximum.
template <class T, int V>
struct MaxPoolBackwardBody : PoolBody<V> {
  MaxPoolDiff from;
  Image dx;
  Epilogue epilogue;

  MaxPoolBackwardBody(const MaxPoolDiff& diff, const Image& to, const Epilogue& last)
      : from(diff), dx(to), epilogue(last) {}

  HVD_HOST_DEVICE void store(const Place& place, Nothing /*channels*/, Nothing /*row*/) const {
    const Window& window = from.window;
    const Pixel at(dx.h, dx.w, place.row);
    const Plane plane(from.dy, at.n);
    const Cover rows(at.h, window.kernel_h, window.stride_h, window.pad_top, from.dy.h);
    const Cover columns(at.w, window.kernel_w, window.stride_w, window.pad_left, from.dy.w);
    float value[V] = {};
    for (int oh = rows.first; oh <= rows.last; ++oh) {
      for (int ow = columns.first; ow <= columns.last; ++ow) {
        const int tap = (at.h - oh * window.stride_h + window.pad_top) * window.kernel_w + at.w - ow * window.stride_w +
                        window.pad_left;
        const auto window_diff = WindowDiff<T, V>::load(from, plane.row(oh, ow), place.channel);
        float diff[V];
        window_diff.values(from, diff);
        for (int k = 0; k < V; ++k) value[k] += window_diff.index.at[k] == tap ? diff[k] : 0;
      }
    }
    finish<T, V>(epilogue, place, value);
    store_row<T, V>(dx.matrix, place, value);
  }
};

/// The backward for windows of kKernel x kKernel (2 or 3) at stride 2. A row of this body is a tile of 2 x 2 pixels of
/// dx, which all read the same windows. Tile (a, b) begins where window (a, b) begins, and window (a, b) covers the
/// tile. If kKernel is 3, the windows above and left of (a, b) also cover parts of the tile. kFinished: there is an
/// epilogue, which needs more registers per thread.
template <class T, int V, int kKernel, bool kFinished>
struct MaxPoolBackwardTileBody : PoolBody<V> {
  MaxPoolDiff from;
  Image dx;
  Epilogue epilogue;
  std::int64_t tiles_h, tiles_w;
  static constexpr int kBlocks = kKernel == 2 && !kFinished ? 3 : 2;
  static constexpr int kBefore = kKernel - 2;  ///< windows before (a, b) that cover its tile, along one axis
  static constexpr int kCovering = kBefore + 1;

  MaxPoolBackwardTileBody(const MaxPoolDiff& diff, const Image& to, const Epilogue& last)
      : from(diff),
        dx(to),
        epilogue(last),
        tiles_h((to.h - 1 + diff.window.pad_top) / 2 + 1),
        tiles_w((to.w - 1 + diff.window.pad_left) / 2 + 1) {}
  [[nodiscard]] std::int64_t rows() const { return dx.n * tiles_h * tiles_w; }

  HVD_HOST_DEVICE void store(const Place& place, Nothing /*channels*/, Nothing /*row*/) const {
    const Pixel tile(tiles_h, tiles_w, place.row);
    const Plane windows(from.dy, tile.n);
    WindowDiff<T, V> window_diffs[kCovering * kCovering];
    HVD_UNROLL
    for (int i = 0; i < kCovering * kCovering; ++i) {  // if window i does not exist, reads the nearest window
      const std::int64_t row =
          windows.row(clamped(window_h(tile, i), windows.h), clamped(window_w(tile, i), windows.w));
      window_diffs[i] = WindowDiff<T, V>::load(from, row, place.channel);
    }
    float value[4][V] = {};
    HVD_UNROLL
    for (int i = 0; i < kCovering * kCovering; ++i) {
      const bool exists = windows.holds(window_h(tile, i), window_w(tile, i));
      float diff[V];
      window_diffs[i].values(from, diff);
      for (int k = 0; k < V; ++k) {
        const int index = exists ? window_diffs[i].index.at[k] : -1;
        HVD_UNROLL
        for (int pixel = 0; pixel < 4; ++pixel) {
          if (tap(pixel, i) >= 0 && index == tap(pixel, i)) value[pixel][k] += diff[k];
        }
      }
    }
    const Plane plane(dx, tile.n);
    HVD_UNROLL
    for (int pixel = 0; pixel < 4; ++pixel) {
      const int h = 2 * tile.h - from.window.pad_top + pixel / 2, w = 2 * tile.w - from.window.pad_left + pixel % 2;
      if (!plane.holds(h, w)) continue;
      const Place here{plane.row(h, w), place.channel};
      if constexpr (kFinished) finish<T, V>(epilogue, here, value[pixel]);
      store_row<T, V>(dx.matrix, here, value[pixel]);
    }
  }

 private:
  /// Returns the index of a tile's pixel in window `i`, or -1 if the window does not cover the pixel.
  HVD_HOST_DEVICE static constexpr int tap(int pixel, int i) {
    const int h = pixel / 2 + 2 * (kBefore - i / kCovering), w = pixel % 2 + 2 * (kBefore - i % kCovering);
    return h < kKernel && w < kKernel ? h * kKernel + w : -1;
  }
  /// window_h() and window_w() return the position of window `i` among those over `tile`, counted row by row.
  HVD_HOST_DEVICE static int window_h(const Pixel& tile, int i) { return tile.h - kBefore + i / kCovering; }
  HVD_HOST_DEVICE static int window_w(const Pixel& tile, int i) { return tile.w - kBefore + i % kCovering; }
};

}  // namespace hvd::models::cudnn::kernels
