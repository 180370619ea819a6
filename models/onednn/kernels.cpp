#include "models/onednn/kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "engine/base/at_level.h"
#include "engine/base/error.h"
#include "engine/base/float16.h"
#include "models/onednn/threads.h"

// The loops below are compiled for each vector level (at_level.h). All levels round in the same way (-ffp-contract=off,
// cmake/Targets.cmake), in the vector part of a loop and in the rest.
namespace hvd::models::onednn {
namespace {

constexpr std::size_t kUnit = 64;  // the shares of threads begin at multiples of this many elements

HVD_ALWAYS_INLINE float load(const float* p, std::size_t i) { return p[i]; }
HVD_ALWAYS_INLINE float load(const std::uint16_t* p, std::size_t i) { return bf16_to_float(p[i]); }
HVD_ALWAYS_INLINE void store(float* p, std::size_t i, float value) { p[i] = value; }
// Rounds to nearest even like float_to_bf16(), but without a branch for NaN, so that the loops vectorise. A NaN stays a
// NaN, except for the few NaNs that rounding turns into another value because their payload overflows.
HVD_ALWAYS_INLINE void store(std::uint16_t* p, std::size_t i, float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  p[i] = static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

HVD_ALWAYS_INLINE void add_f32(const float* a, const float* b, float* y, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) y[i] = a[i] + b[i];
}
HVD_ALWAYS_INLINE void add_bf16(const std::uint16_t* a, const std::uint16_t* b, std::uint16_t* y, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) store(y, i, load(a, i) + load(b, i));
}
HVD_ALWAYS_INLINE void relu_f32(const float* x, float* y, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) y[i] = x[i] > 0 ? x[i] : 0;
}
HVD_ALWAYS_INLINE void relu_bf16(const std::uint16_t* x, std::uint16_t* y, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) y[i] = load(x, i) > 0 ? x[i] : std::uint16_t{0};
}
HVD_ALWAYS_INLINE void convert_to_bf16(const float* from, std::uint16_t* to, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) store(to, i, from[i]);
}
HVD_ALWAYS_INLINE void convert_to_f32(const std::uint16_t* from, float* to, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) to[i] = load(from, i);
}

// `at`: indices of the pixel (or row) before position i, at i and after i. `factor`: their factors in the mean, or 0
// for a pixel outside the image.
struct Taps {
  std::array<std::size_t, 3> at{};
  std::array<float, 3> factor{};
};
Taps taps(std::size_t i, std::size_t count, bool backward) {
  Taps made;
  for (std::size_t t = 0; t < 3; ++t) {
    const bool inside = i + t >= 1 && i + t <= count;
    made.at[t] = inside ? i + t - 1 : i;
    const std::size_t mean_of = backward ? made.at[t] : i;
    const int averaged = 1 + (mean_of > 0 ? 1 : 0) + (mean_of + 1 < count ? 1 : 0);
    made.factor[t] = inside ? 1.0F / static_cast<float>(averaged) : 0;
  }
  return made;
}

HVD_ALWAYS_INLINE void sum_rows(const std::uint16_t* image, const Taps& rows, std::size_t n, float* sums) {
  const std::uint16_t *above = image + rows.at[0] * n, *here = image + rows.at[1] * n, *below = image + rows.at[2] * n;
  const float a = rows.factor[0], b = rows.factor[1], c = rows.factor[2];
  for (std::size_t i = 0; i < n; ++i) sums[i] = load(above, i) * a + load(here, i) * b + load(below, i) * c;
}
HVD_ALWAYS_INLINE void sum_columns(const float* sums, const Taps* columns, std::size_t width, std::size_t channels,
                                   std::uint16_t* y) {
  for (std::size_t w = 0; w < width; ++w, y += channels) {
    const Taps& t = columns[w];
    const float *left = sums + t.at[0] * channels, *here = sums + t.at[1] * channels,
                *right = sums + t.at[2] * channels;
    const float a = t.factor[0], b = t.factor[1], c = t.factor[2];
    for (std::size_t i = 0; i < channels; ++i) store(y, i, left[i] * a + here[i] * b + right[i] * c);
  }
}

// Computes mean_3x3() or its backward pass. Each row of the result is summed over image rows, then over columns.
void means(const std::uint16_t* from, std::uint16_t* to, const Pixels& shape, bool backward, VectorLevel level) {
  const std::size_t row = shape.width * shape.channels;
  if (row == 0 || shape.height == 0) return;
  std::vector<Taps> columns(shape.width);
  for (std::size_t w = 0; w < shape.width; ++w) columns[w] = taps(w, shape.width, backward);
  std::vector<float> sums(row * static_cast<std::size_t>(omp_get_max_threads()));
  parallel_ranges(shape.images * shape.height * row, row, [&](std::size_t begin, std::size_t end) {
    float* own = sums.data() + row * static_cast<std::size_t>(omp_get_thread_num());
    for (std::size_t line = begin / row; line < end / row; ++line) {
      const std::uint16_t* image = from + line / shape.height * shape.height * row;
      loop_at<sum_rows>(level, image, taps(line % shape.height, shape.height, backward), row, own);
      loop_at<sum_columns>(level, own, columns.data(), shape.width, shape.channels, to + line * row);
    }
  });
}

HVD_ALWAYS_INLINE void dropout_f32(const float* x, const std::uint8_t* keep, float scale, float* y, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) y[i] = keep[i] != 0 ? x[i] * scale : 0;
}
HVD_ALWAYS_INLINE void dropout_bf16(const std::uint16_t* x, const std::uint8_t* keep, float scale, std::uint16_t* y,
                                    std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) store(y, i, keep[i] != 0 ? load(x, i) * scale : 0);
}

template <class T>
HVD_ALWAYS_INLINE void sgd_loop(float* __restrict w, float* __restrict m, const T* __restrict g, const SgdFactors& f,
                                std::size_t n) {
  const float rate = f.learning_rate, momentum = f.momentum, decay = f.decay, scale = f.scale;
  for (std::size_t i = 0; i < n; ++i) {
    const float gradient = scale * load(g, i) + decay * w[i];
    m[i] = momentum * m[i] + gradient;
    w[i] -= rate * m[i];
  }
}
HVD_ALWAYS_INLINE void sgd_f32(float* w, float* m, const float* g, const SgdFactors& f, std::size_t n) {
  sgd_loop(w, m, g, f, n);
}
HVD_ALWAYS_INLINE void sgd_bf16(float* w, float* m, const std::uint16_t* g, const SgdFactors& f, std::size_t n) {
  sgd_loop(w, m, g, f, n);
}

const float* f32(const void* p) { return static_cast<const float*>(p); }
float* f32(void* p) { return static_cast<float*>(p); }
const std::uint16_t* b16(const void* p) { return static_cast<const std::uint16_t*>(p); }
std::uint16_t* b16(void* p) { return static_cast<std::uint16_t*>(p); }

}  // namespace

void relu(DataType type, const void* x, void* y, std::size_t count, VectorLevel level) {
  parallel_ranges(count, kUnit, [&](std::size_t begin, std::size_t end) {
    if (type == DataType::kF32) {
      loop_at<relu_f32>(level, f32(x) + begin, f32(y) + begin, end - begin);
    } else {
      loop_at<relu_bf16>(level, b16(x) + begin, b16(y) + begin, end - begin);
    }
  });
}

void add(DataType type, const void* a, const void* b, void* y, std::size_t count, VectorLevel level) {
  parallel_ranges(count, kUnit, [&](std::size_t begin, std::size_t end) {
    if (type == DataType::kF32) {
      loop_at<add_f32>(level, f32(a) + begin, f32(b) + begin, f32(y) + begin, end - begin);
    } else {
      loop_at<add_bf16>(level, b16(a) + begin, b16(b) + begin, b16(y) + begin, end - begin);
    }
  });
}

void mean_3x3(const std::uint16_t* x, std::uint16_t* y, const Pixels& shape, VectorLevel level) {
  means(x, y, shape, false, level);
}

void mean_3x3_backward(const std::uint16_t* diff_y, std::uint16_t* diff_x, const Pixels& shape, VectorLevel level) {
  means(diff_y, diff_x, shape, true, level);
}

void copy_rows(const std::byte* from, std::byte* to, const RowCopy& shape) {
  const std::size_t per_row = std::max<std::size_t>(shape.row_bytes, 1);
  parallel_ranges(shape.rows * per_row, per_row, [&](std::size_t begin, std::size_t end) {
    for (std::size_t row = begin / per_row; row < end / per_row; ++row) {
      std::memcpy(to + row * shape.to_stride, from + row * shape.from_stride, shape.row_bytes);
    }
  });
}

void gather_pixels(const std::byte* from, std::byte* to, const PixelGather& shape) {
  const std::size_t row_bytes = shape.columns * shape.pixel_bytes;
  parallel_ranges(shape.rows * row_bytes, row_bytes, [&](std::size_t begin, std::size_t end) {
    for (std::size_t row = begin / row_bytes; row < end / row_bytes; ++row) {
      const std::byte* source = from + row / shape.height * shape.image_stride + row % shape.height * shape.row_stride;
      std::byte* target = to + row * row_bytes;
      for (std::size_t column = 0; column < shape.columns; ++column) {
        std::memcpy(target + column * shape.pixel_bytes, source + column * shape.column_stride, shape.pixel_bytes);
      }
    }
  });
}

void dropout(DataType type, const void* x, std::span<const std::uint8_t> keep, float scale, void* y,
             VectorLevel level) {
  parallel_ranges(keep.size(), kUnit, [&](std::size_t begin, std::size_t end) {
    if (type == DataType::kF32) {
      loop_at<dropout_f32>(level, f32(x) + begin, keep.data() + begin, scale, f32(y) + begin, end - begin);
    } else {
      loop_at<dropout_bf16>(level, b16(x) + begin, keep.data() + begin, scale, b16(y) + begin, end - begin);
    }
  });
}

double softmax_cross_entropy(const float* logits, std::span<const std::int32_t> labels, std::size_t classes,
                             float* probabilities) {
  double loss = 0;
  for (std::size_t row = 0; row < labels.size(); ++row) {
    const std::int32_t label = labels[row];
    if (label < 0 || static_cast<std::size_t>(label) >= classes) {
      throw Error(Errc::kInvalidArgument, fmt::format("label {} of sample {} is not in [0, {})", label, row, classes));
    }
    const float* in = logits + row * classes;
    float* out = probabilities + row * classes;
    const float largest = *std::max_element(in, in + classes);
    const double of_label = in[label];  // read before the loops below, where the probabilities may overwrite the logits
    double sum = 0;
    for (std::size_t i = 0; i < classes; ++i) {
      out[i] = std::exp(in[i] - largest);
      sum += out[i];
    }
    const auto inverse = static_cast<float>(1.0 / sum);
    for (std::size_t i = 0; i < classes; ++i) out[i] *= inverse;
    loss += std::log(sum) - (of_label - static_cast<double>(largest));
  }
  return loss / static_cast<double>(labels.size());
}

void softmax_cross_entropy_backward(DataType type, const float* probabilities, std::span<const std::int32_t> labels,
                                    std::size_t classes, float scale, void* diff) {
  for (std::size_t row = 0; row < labels.size(); ++row) {
    const auto label = static_cast<std::size_t>(labels[row]);
    for (std::size_t i = 0; i < classes; ++i) {
      const std::size_t at = row * classes + i;
      const float value = (probabilities[at] - (i == label ? 1.0F : 0.0F)) * scale;
      if (type == DataType::kF32) {
        store(f32(diff), at, value);
      } else {
        store(b16(diff), at, value);
      }
    }
  }
}

void update_running(std::span<float> running, const float* batch, float momentum, float unbias) {
  for (std::size_t i = 0; i < running.size(); ++i) {
    running[i] = (1.0F - momentum) * running[i] + momentum * (batch[i] * unbias);
  }
}

void to_bf16(const float* from, std::uint16_t* to, std::size_t count, VectorLevel level) {
  parallel_ranges(count, kUnit, [&](std::size_t begin, std::size_t end) {
    loop_at<convert_to_bf16>(level, from + begin, to + begin, end - begin);
  });
}

void to_f32(const std::uint16_t* from, float* to, std::size_t count, VectorLevel level) {
  parallel_ranges(count, kUnit, [&](std::size_t begin, std::size_t end) {
    loop_at<convert_to_f32>(level, from + begin, to + begin, end - begin);
  });
}

void sgd(DataType gradient_type, const SgdRange& range, const SgdFactors& factors, std::size_t count,
         VectorLevel level) {
  if (gradient_type == DataType::kF32) {
    loop_at<sgd_f32>(level, range.weight, range.momentum, f32(range.gradient), factors, count);
  } else {
    loop_at<sgd_bf16>(level, range.weight, range.momentum, b16(range.gradient), factors, count);
  }
}

}  // namespace hvd::models::onednn
