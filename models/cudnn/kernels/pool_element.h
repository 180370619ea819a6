// Pools, as row bodies (element.h). Their rows are output pixels, or small parts of the output image if neighbouring
// pixels share inputs. A row body reads all that a row needs before it computes anything, so that the reads overlap.
#pragma once

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

/// The position of pixel `row` of a batch. A batch may have more pixels than 32 bits can count, but one image may not.
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

/// The rows of one image of a batch. The sizes have 32 bits, because every tap is compared with them.
struct Plane {
  std::int64_t first;  ///< row of the plane's first pixel
  int h, w;
  HVD_HOST_DEVICE Plane(const Image& image, std::int64_t n)
      : first(n * image.h * image.w), h(static_cast<int>(image.h)), w(static_cast<int>(image.w)) {}
  HVD_HOST_DEVICE bool holds(int at_h, int at_w) const { return at_h >= 0 && at_w >= 0 && at_h < h && at_w < w; }
  HVD_HOST_DEVICE std::int64_t row(int at_h, int at_w) const { return first + std::int64_t{at_h} * w + at_w; }
};

HVD_HOST_DEVICE inline int clamped(int at, int size) { return at < 0 ? 0 : at < size ? at : size - 1; }

// ---- Max pools ----

/// The largest tap so far, and its index in the window.
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

/// kKernel: height and width of the window; 0: any window.
template <class T, int V, int kKernel>
struct MaxPoolBody : PoolBody<V> {
  Window window;
  Image x, y;
  std::uint8_t* where;  // rows without gaps

  MaxPoolBody(const Window& of, const Image& from, const Image& to, std::uint8_t* index)
      : window(of), x(from), y(to), where(index) {}

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

/// First and last output position, along one axis, whose window covers input position `at`.
struct Cover {
  int first, last;
  HVD_HOST_DEVICE Cover(int at, int kernel, int stride, int pad, std::int64_t outputs) {
    const int from = at + pad - kernel + 1;
    first = from <= 0 ? 0 : (from + stride - 1) / stride;
    last = (at + pad) / stride;
    if (last >= outputs) last = static_cast<int>(outputs) - 1;
  }
};

/// The inputs of a max pool's backward.
struct MaxPoolDiff {
  Window window;
  const std::uint8_t* where;
  Image dy;
  Matrix pooled;  ///< the pool's output; data == nullptr: no rectifier before the pool
};

/// The diff of one window's output, and the index of the element that receives it.
template <class T, int V>
struct WindowDiff {
  Vector<std::uint8_t, V> index;
  Vector<T, V> diff, test;

  HVD_HOST_DEVICE static WindowDiff load(const MaxPoolDiff& of, std::int64_t row, std::int64_t channel) {
    const Place place{row, channel};
    WindowDiff made;
    made.index = kernels::load<std::uint8_t, V>(of.where, row * of.dy.matrix.channels + channel);
    made.diff = kernels::load<T, V>(of.dy.matrix.data, place.in(of.dy.matrix));
    if (of.pooled.data != nullptr) made.test = kernels::load<T, V>(of.pooled.data, place.in(of.pooled));
    return made;
  }
  /// Sets `value` to the diff, after the rectifier's backward if there is a rectifier.
  HVD_HOST_DEVICE void values(const MaxPoolDiff& of, float (&value)[V]) const {
    for (int k = 0; k < V; ++k) value[k] = to_float(diff.at[k]);
    if (of.pooled.data != nullptr) mask(test, value);
  }
};

/// For any window. Each element of dx adds up the diffs of the windows in which it is the maximum.
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
        const auto one = WindowDiff<T, V>::load(from, plane.row(oh, ow), place.channel);
        float diff[V];
        one.values(from, diff);
        for (int k = 0; k < V; ++k) value[k] += one.index.at[k] == tap ? diff[k] : 0;
      }
    }
    finish<T, V>(epilogue, place, value);
    store_row<T, V>(dx.matrix, place, value);
  }
};

/// For windows of kKernel x kKernel (2 or 3) at stride 2. A row is a tile of 2 x 2 pixels of dx, which read the same
/// windows. Tile (a, b) begins where window (a, b) begins, and this window covers it. If kKernel is 3, the windows
/// before (a, b) also cover parts of the tile. kFinished: there is an epilogue, which takes a thread more registers.
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
    WindowDiff<T, V> of[kCovering * kCovering];
    HVD_UNROLL
    for (int i = 0; i < kCovering * kCovering; ++i) {  // if window i does not exist, reads the nearest window
      const std::int64_t row =
          windows.row(clamped(window_h(tile, i), windows.h), clamped(window_w(tile, i), windows.w));
      of[i] = WindowDiff<T, V>::load(from, row, place.channel);
    }
    float value[4][V] = {};
    HVD_UNROLL
    for (int i = 0; i < kCovering * kCovering; ++i) {
      const bool exists = windows.holds(window_h(tile, i), window_w(tile, i));
      float diff[V];
      of[i].values(from, diff);
      for (int k = 0; k < V; ++k) {
        const int index = exists ? of[i].index.at[k] : -1;
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
  /// The position of window `i` among the windows that cover a tile, counted row by row.
  HVD_HOST_DEVICE static int window_h(const Pixel& tile, int i) { return tile.h - kBefore + i / kCovering; }
  HVD_HOST_DEVICE static int window_w(const Pixel& tile, int i) { return tile.w - kBefore + i % kCovering; }
};

// ---- Average pools ----

/// Number of a window's elements along one axis, without padding, because averages exclude padding.
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

  AvgPoolBody(const Window& of, const Image& from, const Image& to) : window(of), x(from), y(to) {}

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

  AvgPoolBackwardBody(const Window& of, const Image& from, const Image& to, const Epilogue& last)
      : window(of), dy(from), dx(to), epilogue(last) {}

  HVD_HOST_DEVICE void store(const Place& place, Nothing /*channels*/, Nothing /*row*/) const {
    const Pixel at(dx.h, dx.w, place.row);
    const Plane windows(dy, at.n), plane(dx, at.n);
    const Cover rows(at.h, window.kernel_h, window.stride_h, window.pad_top, dy.h);
    const Cover columns(at.w, window.kernel_w, window.stride_w, window.pad_left, dy.w);
    float value[V] = {};
    for (int oh = rows.first; oh <= rows.last; ++oh) {
      for (int ow = columns.first; ow <= columns.last; ++ow) {
        const float scale = inverse_area(window, plane, oh, ow);
        const Place one{windows.row(oh, ow), place.channel};
        const auto diff = kernels::load<T, V>(dy.matrix.data, one.in(dy.matrix));
        for (int k = 0; k < V; ++k) value[k] += to_float(diff.at[k]) * scale;
      }
    }
    finish<T, V>(epilogue, place, value);
    store_row<T, V>(dx.matrix, place, value);
  }
};

/// For windows of 3 x 3 at stride 1, forward and backward. A row is a vertical strip of pixels, one pixel wide. Each
/// sum of three horizontal neighbours is made once and serves three pixels of the strip. Backward sums the windows'
/// diffs in the same way, each multiplied by its window's 1 / area. Backward's padding is 2 - forward's padding.
template <class T, int V, bool kBackward, bool kFinished>
struct AvgPoolStripBody : PoolBody<V> {
  Image in, out;
  Epilogue epilogue;
  int above, left;  ///< number of rows above and columns left of an output pixel that the pixel reads
  Window window;
  std::int64_t strips, strip_h;
  static constexpr int kBlocks = kFinished ? 2 : 3;
  static constexpr int kRows = kFinished ? 3 : 2;  ///< rows in flight
  static constexpr std::int64_t kLongest = 12;     ///< longer strips read fewer rows twice, but keep fewer threads busy

  AvgPoolStripBody(const Window& of, const Image& from, const Image& to, const Epilogue& last)
      : in(from),
        out(to),
        epilogue(last),
        above(kBackward ? 2 - of.pad_top : of.pad_top),
        left(kBackward ? 2 - of.pad_left : of.pad_left),
        window(of),
        strips((to.h + kLongest - 1) / kLongest),
        strip_h((to.h + strips - 1) / strips) {}
  [[nodiscard]] std::int64_t rows() const { return out.n * strips * out.w; }

  HVD_HOST_DEVICE void store(const Place& place, Nothing /*channels*/, Nothing /*row*/) const {
    const Pixel at(strips, out.w, place.row);
    const auto height = static_cast<int>(out.h), longest = static_cast<int>(strip_h);
    const int first = at.h * longest, end = first + longest < height ? first + longest : height;
    const Strip strip(*this, at, end, place.channel);
    float sums[2 + kRows][V];  // sums of three neighbours in successive rows; the last two sums serve the next pixels
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

  /// The inputs of a strip. Row 0 is the first row that the first row of the output reads. For rows and columns outside
  /// the image, a neighbour that exists is read instead and multiplied by 0.
  struct Strip {
    const AvgPoolStripBody& body;
    std::int64_t plane;      ///< matrix row of the input image's first pixel
    std::int64_t column[3];  ///< offsets of the three columns from the start of a line, in elements
    float weight[3];
    int last;  ///< last line of the input image that the strip may read

    HVD_HOST_DEVICE Strip(const AvgPoolStripBody& of, const Pixel& at, int end, std::int64_t channel)
        : body(of), plane(at.n * of.in.h * of.in.w) {
      const auto width = static_cast<int>(of.in.w), height = static_cast<int>(of.in.h);
      last = clamped(end + 1 - of.above, height);
      HVD_UNROLL
      for (int i = 0; i < 3; ++i) {
        const int w = at.w - of.left + i;
        column[i] = clamped(w, width) * of.in.matrix.pitch + channel;
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
    /// Sums three neighbours. Backward first multiplies each by its window's 1 / area.
    HVD_HOST_DEVICE void sum(int row, const Three& three, float (&value)[V]) const {
      const int h = row - body.above;
      const float times = h < 0 || h >= body.in.h ? 0 : kBackward ? share_h(h) : 1;
      for (int k = 0; k < V; ++k) {
        value[k] = (to_float(three.at[0].at[k]) * weight[0] + to_float(three.at[1].at[k]) * weight[1] +
                    to_float(three.at[2].at[k]) * weight[2]) *
                   times;
      }
    }
    /// Return 1 / the number of a window's elements along an axis, without padding. share_h * share_w is 1 / area.
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
