// The windows of a convolution as the rows of a matrix.
#include "models/cudnn/kernels/grid.cuh"

namespace hvd::models::cudnn::kernels {
namespace {

constexpr int kMostPixels = 256;  // of a line of the result, per block

// What a block reads: `pixels` windows side by side, which cover `lines` lines of `span` elements.
struct Tile {
  int pixels = 0, lines = 0, span = 0;
};

Tile tile_of(const Window& window, const Image& x, const Image& out) {
  const auto channels = static_cast<int>(x.matrix.channels);
  const auto span = [&](int pixels) { return ((pixels - 1) * window.stride_w + window.kernel_w) * channels; };
  int pixels = static_cast<int>(std::min<std::int64_t>(out.w, kMostPixels));
  while (pixels > 1 && std::int64_t{window.kernel_h} * span(pixels) > kMostWindowElements) --pixels;
  if (std::int64_t{window.kernel_h} * span(pixels) > kMostWindowElements) {
    throw Error(Errc::kInvalidArgument, "kernel columns: a window of " + std::to_string(window.kernel_h * span(1)) +
                                            " elements; it takes up to " + std::to_string(kMostWindowElements));
  }
  const auto blocks = (static_cast<int>(out.w) + pixels - 1) / pixels;
  pixels = (static_cast<int>(out.w) + blocks - 1) / blocks;  // as many for each
  return {.pixels = pixels, .lines = window.kernel_h, .span = span(pixels)};
}

// A block makes the rows of `tile.pixels` neighbours on one line of the result. Every element of the image is read
// about once from memory, line by line, and then many times from shared memory.
template <class T, int V>
__global__ void __launch_bounds__(kThreads)
    columns_kernel(const HVD_GRID_CONSTANT Window window, const HVD_GRID_CONSTANT Image x,
                   const HVD_GRID_CONSTANT Image out, const HVD_GRID_CONSTANT Tile tile, int blocks_per_line) {
  __shared__ T shared[kMostWindowElements];
  const auto thread = static_cast<int>(threadIdx.x);
  const std::int64_t line = blockIdx.x / static_cast<unsigned>(blocks_per_line);
  const int first = static_cast<int>(blockIdx.x - line * blocks_per_line) * tile.pixels;
  const std::int64_t n = quotient(line, out.h);
  const int top = static_cast<int>(line - n * out.h) * window.stride_h - window.pad_top;
  const int left = first * window.stride_w - window.pad_left;
  const int channels = static_cast<int>(x.matrix.channels);
  for (int i = thread; i < tile.lines * tile.span; i += kThreads) {
    const int at_line = i / tile.span, rest = i - at_line * tile.span, at_pixel = rest / channels;
    const int h = top + at_line, w = left + at_pixel;
    const bool there = h >= 0 && w >= 0 && h < x.h && w < x.w;
    const std::int64_t pixel = (n * x.h + h) * x.w + w;
    shared[i] = there ? static_cast<const T*>(x.matrix.data)[pixel * x.matrix.pitch + (rest - at_pixel * channels)]
                      : from_float<T>(0);
  }
  __syncthreads();
  const int in_line = window.kernel_w * channels, taps = window.kernel_h * in_line;
  const int vectors = static_cast<int>(out.matrix.channels) / V;
  const int pixels = std::min(tile.pixels, static_cast<int>(out.w) - first);
  for (int i = thread; i < pixels * vectors; i += kThreads) {
    const int pixel = i / vectors, channel = (i - pixel * vectors) * V;
    int at_line = channel / in_line, rest = channel - at_line * in_line;
    const T* const from = shared + pixel * window.stride_w * channels;
    Vector<T, V> value;
    HVD_UNROLL
    for (int k = 0; k < V; ++k) {
      value.at[k] = channel + k < taps ? from[at_line * tile.span + rest] : from_float<T>(0);
      if (++rest == in_line) {
        rest = 0;
        ++at_line;
      }
    }
    store<T, V>(out.matrix.data, (line * out.w + first + pixel) * out.matrix.pitch + channel, value);
  }
}

}  // namespace

void columns(const Window& window, const Image& x, const Image& out, Stream stream) {
  if (out.matrix.rows <= 0) return;
  const Tile tile = tile_of(window, x, out);
  const std::int64_t per_line = (out.w + tile.pixels - 1) / tile.pixels;
  with_vectors(out.matrix.type, is_wide({&out.matrix}), "columns", [&](auto* type, auto width) {
    launch_blocks("columns", columns_kernel<Pointee<decltype(type)>, decltype(width)::value>,
                  static_cast<unsigned>(out.n * out.h * per_line), stream, window, x, out, tile,
                  static_cast<int>(per_line));
  });
}

}  // namespace hvd::models::cudnn::kernels
