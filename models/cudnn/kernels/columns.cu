// Copies the windows of a convolution to the rows of a matrix.
#include <algorithm>

#include "models/cudnn/kernels/grid.cuh"

namespace hvd::models::cudnn::kernels {
namespace {

constexpr int kMaxPixels = 256;  // output pixels per block, all on one line
constexpr int kWarp = 32;

// The input of a block: `pixels` windows side by side, which cover `lines` lines of `span` elements each. In shared
// memory, lines are `pitch` elements apart. `readers` threads read each line.
struct Tile {
  int pixels = 0, lines = 0, span = 0, pitch = 0, readers = 0;
};

// Chooses the pitch so that few reads of shared memory conflict. Neighbouring threads read neighbouring vectors of a
// window, 16 bytes apart, which lie in 8 of the 32 banks. With this pitch, the vectors in the next line of the window
// begin one bank further. In ResNet-101, Inception V3 and VGG-16, at most three reads then meet in one bank.
template <class T>
int pitch_of(int span, int in_line) {
  constexpr int kVector = 16, kBank = 4, kBytes = sizeof(T);
  int pitch = span;
  while ((pitch - in_line) * kBytes % kVector != kBank) ++pitch;
  return pitch;
}

template <class T>
Tile tile_of(const Window& window, const Image& x, const Image& out) {
  const auto channels = static_cast<int>(x.matrix.channels);
  const auto span = [&](int pixels) { return ((pixels - 1) * window.stride_w + window.kernel_w) * channels; };
  const auto pitch = [&](int pixels) { return pitch_of<T>(span(pixels), window.kernel_w * channels); };
  const auto fits = [&](int distance) { return std::int64_t{window.kernel_h} * distance <= kMaxWindowElements; };
  if (!fits(span(1))) {
    throw Error(Errc::kInvalidArgument, "kernel columns: a window of " + std::to_string(window.kernel_h * span(1)) +
                                            " elements; it takes up to " + std::to_string(kMaxWindowElements));
  }
  int pixels = static_cast<int>(std::min<std::int64_t>(out.w, kMaxPixels));
  while (pixels > 1 && !fits(pitch(pixels))) --pixels;
  const auto blocks = (static_cast<int>(out.w) + pixels - 1) / pixels;
  pixels = (static_cast<int>(out.w) + blocks - 1) / blocks;  // the same number of pixels for each block
  return {.pixels = pixels,
          .lines = window.kernel_h,
          .span = span(pixels),
          .pitch = fits(pitch(pixels)) ? pitch(pixels) : span(pixels),
          .readers = std::max(kWarp, kThreads / window.kernel_h / kWarp * kWarp)};
}

// Reads lines [top, top + tile.lines) of image n, from pixel `left` on; elements outside of the image become zero.
template <class T>
__device__ void read_tile(T* shared, const Tile& tile, const Image& x, std::int64_t n, int top, int left) {
  const auto thread = static_cast<int>(threadIdx.x);
  const int group = thread / tile.readers, reader = thread - group * tile.readers, groups = kThreads / tile.readers;
  if (group >= groups) return;
  const auto channels = static_cast<int>(x.matrix.channels);
  const bool dense = x.matrix.pitch == channels;
  const int begin = -left * channels, end = (static_cast<int>(x.w) - left) * channels;  // range of i inside the image
  for (int line = group; line < tile.lines; line += groups) {
    const int h = top + line;
    const bool there = h >= 0 && h < x.h;
    const std::int64_t from = ((n * x.h + h) * x.w + left) * x.matrix.pitch;
    T* const to = shared + line * tile.pitch;
    for (int i = reader; i < tile.span; i += tile.readers) {
      T value = from_float<T>(0);
      if (there && i >= begin && i < end) {
        value = static_cast<const T*>(x.matrix.data)[from + (dense ? i : i / channels * x.matrix.pitch + i % channels)];
      }
      to[i] = value;
    }
  }
}

// A block writes the matrix rows of `tile.pixels` neighbouring output pixels on one line. The block reads every element
// of the image about once from memory, line by line, and then many times from shared memory. A thread copies the same
// vector of the window for one pixel after another.
template <class T, int V>
__global__ void __launch_bounds__(kThreads)
    columns_kernel(const HVD_GRID_CONSTANT Window window, const HVD_GRID_CONSTANT Image x,
                   const HVD_GRID_CONSTANT Image out, const HVD_GRID_CONSTANT Tile tile, int blocks_per_line) {
  __shared__ T shared[kMaxWindowElements];
  const auto thread = static_cast<int>(threadIdx.x);
  const std::int64_t line = blockIdx.x / static_cast<unsigned>(blocks_per_line);
  const int first = static_cast<int>(blockIdx.x - line * blocks_per_line) * tile.pixels;
  const std::int64_t n = quotient(line, out.h);
  read_tile(shared, tile, x, n, static_cast<int>(line - n * out.h) * window.stride_h - window.pad_top,
            first * window.stride_w - window.pad_left);
  __syncthreads();
  const int channels = static_cast<int>(x.matrix.channels);
  const int in_line = window.kernel_w * channels, taps = window.kernel_h * in_line;
  const int vectors = static_cast<int>(out.matrix.channels) / V;
  const int pixels = std::min(tile.pixels, static_cast<int>(out.w) - first);
  const int at_once = vectors < kThreads ? kThreads / vectors : 1;
  const int slot = vectors < kThreads ? thread / vectors : 0;
  if (slot >= at_once) return;
  const int to_next = window.stride_w * channels;
  for (int vector = thread - slot * vectors; vector < vectors; vector += kThreads) {
    const int channel = vector * V;
    int from[V];  // indices into `shared`, for the first pixel
    int at_line = channel / in_line, rest = channel - at_line * in_line;
    HVD_UNROLL
    for (int k = 0; k < V; ++k) {
      from[k] = at_line * tile.pitch + rest;
      if (++rest == in_line) {
        rest = 0;
        ++at_line;
      }
    }
    const std::int64_t to = (line * out.w + first) * out.matrix.pitch + channel;
    for (int pixel = slot; pixel < pixels; pixel += at_once) {
      const T* const at = shared + pixel * to_next;
      Vector<T, V> value;
      HVD_UNROLL
      for (int k = 0; k < V; ++k) value.at[k] = channel + k < taps ? at[from[k]] : from_float<T>(0);
      store<T, V>(out.matrix.data, to + pixel * out.matrix.pitch, value);
    }
  }
}

}  // namespace

void columns(const Window& window, const Image& x, const Image& out, Stream stream) {
  if (out.matrix.rows <= 0) return;
  with_vectors(out.matrix.type, is_wide({&out.matrix}), "columns", [&](auto* type, auto width) {
    using T = Pointee<decltype(type)>;
    const Tile tile = tile_of<T>(window, x, out);
    const std::int64_t per_line = (out.w + tile.pixels - 1) / tile.pixels;
    launch_blocks("columns", columns_kernel<T, decltype(width)::value>, static_cast<unsigned>(out.n * out.h * per_line),
                  stream, window, x, out, tile, static_cast<int>(per_line));
  });
}

}  // namespace hvd::models::cudnn::kernels
