// Average pools, global average pools, and the backward of both, as row bodies (pool_element.h).
#pragma once

#include <cstdint>

#include "models/cudnn/kernels/pool_element.h"

namespace hvd::models::cudnn::kernels {

/// Returns the number of a window's elements along one axis, without padding, because averages exclude padding.
HVD_HOST_DEVICE inline int extent(int from, int kernel, int size) {
  return (from + kernel < size ? from + kernel : size) - (from > 0 ? from : 0);
}
/// The factor that turns the sum of window (oh, ow) into its average.
HVD_HOST_DEVICE inline float inverse_area(const Window& window, const Plane& x, int oh, int ow) {
  const int h = extent(oh * window.stride_h - window.pad_top, window.kernel_h, x.h);
  const int w = extent(ow * window.stride_w - window.pad_left, window.kernel_w, x.w);
  return 1.0F / static_cast<float>(h * w);
}

template <class T, int V>
struct AvgPoolBody : PoolBody<V> {
  Window window;
  Image x, y;

  AvgPoolBody(const Window& pool_window, const Image& from, const Image& to) : window(pool_window), x(from), y(to) {}

  HVD_HOST_DEVICE void store(const Place& place, Nothing /*channels*/, Nothing /*row*/) const {
    const Pixel at(y.h, y.w, place.row);
    const Plane plane(x, at.n);
    float value[V] = {};
    for (int kh = 0; kh < window.kernel_h; ++kh) {
      for (int kw = 0; kw < window.kernel_w; ++kw) {
        const int h = at.h * window.stride_h - window.pad_top + kh, w = at.w * window.stride_w - window.pad_left + kw;
        if (!plane.holds(h, w)) continue;
        add(kernels::load<T, V>(x.matrix.data, Place{plane.row(h, w), place.channel}.in(x.matrix)), value);
      }
    }
    const float scale = inverse_area(window, plane, at.h, at.w);
    for (int k = 0; k < V; ++k) value[k] *= scale;
    store_row<T, V>(y.matrix, place, value);
  }
};

template <class T, int V>
struct AvgPoolBackwardBody : PoolBody<V> {
  Window window;
  Image dy, dx;
  Epilogue epilogue;

  AvgPoolBackwardBody(const Window& pool_window, const Image& from, const Image& to, const Epilogue& last)
      : window(pool_window), dy(from), dx(to), epilogue(last) {}

  HVD_HOST_DEVICE void store(const Place& place, Nothing /*channels*/, Nothing /*row*/) const {
    const Pixel at(dx.h, dx.w, place.row);
    const Plane windows(dy, at.n), plane(dx, at.n);
    const Cover rows(at.h, window.kernel_h, window.stride_h, window.pad_top, dy.h);
    const Cover columns(at.w, window.kernel_w, window.stride_w, window.pad_left, dy.w);
    float value[V] = {};
    for (int oh = rows.first; oh <= rows.last; ++oh) {
      for (int ow = columns.first; ow <= columns.last; ++ow) {
        const float scale = inverse_area(window, plane, oh, ow);
        const Place diff_place{windows.row(oh, ow), place.channel};
        const auto diff = kernels::load<T, V>(dy.matrix.data, diff_place.in(dy.matrix));
        for (int k = 0; k < V; ++k) value[k] += to_float(diff.at[k]) * scale;
      }
    }
    finish<T, V>(epilogue, place, value);
    store_row<T, V>(dx.matrix, place, value);
  }
};

/// The pool for windows of 3 x 3 at stride 1, forward and backward. A row is a vertical strip of pixels, one pixel
/// wide. Each sum of three horizontal neighbours is made once and serves three pixels of the strip. Backward sums the
/// windows' diffs in the same way, each diff multiplied by 1 / area of its window. Backward's padding is 2 - forward's
/// padding.
template <class T, int V, bool kBackward, bool kFinished>
struct AvgPoolStripBody : PoolBody<V> {
  Image in, out;
  Epilogue epilogue;
  int above, left;  ///< an output pixel reads `above` rows above it and `left` columns left of it
  Window window;
  std::int64_t strips, strip_h;
  static constexpr int kBlocks = kFinished ? 2 : 3;
  static constexpr int kRows = kFinished ? 3 : 2;  ///< rows in flight
  static constexpr std::int64_t kLongest = 12;     ///< longer strips read fewer rows twice, but keep fewer threads busy

  AvgPoolStripBody(const Window& pool_window, const Image& from, const Image& to, const Epilogue& last)
      : in(from),
        out(to),
        epilogue(last),
        above(kBackward ? 2 - pool_window.pad_top : pool_window.pad_top),
        left(kBackward ? 2 - pool_window.pad_left : pool_window.pad_left),
        window(pool_window),
        strips((to.h + kLongest - 1) / kLongest),
        strip_h((to.h + strips - 1) / strips) {}
  [[nodiscard]] std::int64_t rows() const { return out.n * strips * out.w; }

  HVD_HOST_DEVICE void store(const Place& place, Nothing /*channels*/, Nothing /*row*/) const {
    const Pixel at(strips, out.w, place.row);
    const auto height = static_cast<int>(out.h), longest = static_cast<int>(strip_h);
    const int first = at.h * longest, end = first + longest < height ? first + longest : height;
    const Strip strip(*this, at, end, place.channel);
    float sums[2 + kRows][V];  // sums of three neighbours in successive rows; the next pixels reuse the last two sums
    strip.sum(first, strip.load(first), sums[0]);
    strip.sum(first + 1, strip.load(first + 1), sums[1]);
    const std::int64_t plane = at.n * out.h;
    for (int h = first; h < end; h += kRows) {
      Three read[kRows];
      HVD_UNROLL
      for (int i = 0; i < kRows; ++i) read[i] = strip.load(h + 2 + i);
      HVD_UNROLL
      for (int i = 0; i < kRows; ++i) {
        strip.sum(h + 2 + i, read[i], sums[2 + i]);
        if (h + i >= end) continue;
        const float scale = kBackward ? 1 : strip.share_h(h + i) * strip.share_w(at.w);
        float value[V];
        for (int k = 0; k < V; ++k) value[k] = (sums[i][k] + sums[i + 1][k] + sums[i + 2][k]) * scale;
        const Place pixel{(plane + h + i) * out.w + at.w, place.channel};
        if constexpr (kFinished) finish<T, V>(epilogue, pixel, value);
        store_row<T, V>(out.matrix, pixel, value);
      }
      for (int k = 0; k < V; ++k) {
        sums[0][k] = sums[kRows][k];
        sums[1][k] = sums[kRows + 1][k];
      }
    }
  }

 private:
  struct Three {
    Vector<T, V> at[3];
  };

  /// The inputs of a strip. Row 0 is the first input row that row 0 of the output image reads. Instead of an
  /// element outside the image, an element inside is read and multiplied by 0.
  struct Strip {
    const AvgPoolStripBody& body;
    std::int64_t plane;      ///< matrix row of the input image's first pixel
    std::int64_t column[3];  ///< offsets of the three columns from the start of a line, in elements
    float weight[3];
    int last;  ///< last line of the input image that the strip may read

    HVD_HOST_DEVICE Strip(const AvgPoolStripBody& pool, const Pixel& at, int end, std::int64_t channel)
        : body(pool), plane(at.n * pool.in.h * pool.in.w) {
      const auto width = static_cast<int>(pool.in.w), height = static_cast<int>(pool.in.h);
      last = clamped(end + 1 - pool.above, height);
      HVD_UNROLL
      for (int i = 0; i < 3; ++i) {
        const int w = at.w - pool.left + i;
        column[i] = clamped(w, width) * pool.in.matrix.pitch + channel;
        weight[i] = w < 0 || w >= width ? 0 : kBackward ? share_w(w) : 1;
      }
    }
    HVD_HOST_DEVICE Three load(int row) const {
      const int h = row - body.above;
      const std::int64_t line = (plane + (h < 0 ? 0 : h < last ? h : last) * body.in.w) * body.in.matrix.pitch;
      Three made;
      HVD_UNROLL
      for (int i = 0; i < 3; ++i) made.at[i] = kernels::load<T, V>(body.in.matrix.data, line + column[i]);
      return made;
    }
    /// Sums three horizontal neighbours. Backward first multiplies each neighbour by 1 / area of its window.
    HVD_HOST_DEVICE void sum(int row, const Three& three, float (&value)[V]) const {
      const int h = row - body.above;
      const float times = h < 0 || h >= body.in.h ? 0 : kBackward ? share_h(h) : 1;
      for (int k = 0; k < V; ++k) {
        value[k] = (to_float(three.at[0].at[k]) * weight[0] + to_float(three.at[1].at[k]) * weight[1] +
                    to_float(three.at[2].at[k]) * weight[2]) *
                   times;
      }
    }
    /// share_h() and share_w() return 1 / the number of a window's elements along one axis, without padding. Their
    /// product is 1 / area.
    HVD_HOST_DEVICE float share_h(int at) const { return share(at - body.window.pad_top, body.unpooled().h); }
    HVD_HOST_DEVICE float share_w(int at) const { return share(at - body.window.pad_left, body.unpooled().w); }
    HVD_HOST_DEVICE static float share(int from, std::int64_t size) {
      const int elements = extent(from, 3, static_cast<int>(size));
      return elements == 3 ? 1.0F / 3 : elements == 2 ? 1.0F / 2 : 1;
    }
  };
  HVD_HOST_DEVICE const Image& unpooled() const { return kBackward ? out : in; }
};

template <class T, int V>
struct GlobalAvgPoolBody : PoolBody<V> {
  Image x;
  Matrix y;

  GlobalAvgPoolBody(const Image& from, const Matrix& to) : x(from), y(to) {}

  HVD_HOST_DEVICE void store(const Place& place, Nothing /*channels*/, Nothing /*row*/) const {
    const std::int64_t pixels = x.h * x.w;
    float value[V] = {};
    for (std::int64_t p = 0; p < pixels; ++p) {
      add(kernels::load<T, V>(x.matrix.data, Place{place.row * pixels + p, place.channel}.in(x.matrix)), value);
    }
    for (int k = 0; k < V; ++k) value[k] /= static_cast<float>(pixels);
    store_row<T, V>(y, place, value);
  }
};

template <class T, int V>
struct GlobalAvgPoolBackwardBody : PoolBody<V> {
  Matrix dy;
  Image dx;
  Epilogue epilogue;

  GlobalAvgPoolBackwardBody(const Matrix& from, const Image& to, const Epilogue& last)
      : dy(from), dx(to), epilogue(last) {}

  HVD_HOST_DEVICE void store(const Place& place, Nothing /*channels*/, Nothing /*row*/) const {
    const std::int64_t pixels = dx.h * dx.w;
    const auto diff = kernels::load<T, V>(dy.data, Place{quotient(place.row, pixels), place.channel}.in(dy));
    const float scale = 1.0F / static_cast<float>(pixels);
    float value[V];
    for (int k = 0; k < V; ++k) value[k] = to_float(diff.at[k]) * scale;
    finish<T, V>(epilogue, place, value);
    store_row<T, V>(dx.matrix, place, value);
  }
};

}  // namespace hvd::models::cudnn::kernels
