// The loops that the library does not have, or has slower: residual sums with their rectifier, gradient
// sums, the loss, dropout, concatenation and the optimiser. All work on flat memory in any dense layout,
// on the calling thread's OpenMP team; results do not depend on the thread count.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/base/types.h"

namespace hvd::models::onednn {

inline constexpr std::size_t kMaxSummands = 8;

/// Bytes of a bit mask over `count` elements, whole 64-bit words.
constexpr std::size_t mask_bytes(std::size_t count) noexcept { return (count + 63) / 64 * 8; }

/// y = max(a + b, 0); bit i of `mask` says whether y[i] > 0. y may be a or b. kF32 or kBF16.
void add_relu(DataType type, const void* a, const void* b, void* y, std::byte* mask, std::size_t count);

/// Which elements of a sum survive: all, those with a set bit, or those where another tensor is positive.
struct Survivors {
  const std::byte* mask = nullptr;
  const void* positive = nullptr;
};
/// out = sum of `parts` (1 to kMaxSummands, summed in order in fp32) where it survives, else 0. out may be a part.
void sum_survivors(DataType type, std::span<const void* const> parts, const Survivors& survivors, void* out,
                   std::size_t count);

/// y = max(x, 0); y may be x.
void relu(DataType type, const void* x, void* y, std::size_t count);
/// y = a + b; y may be a or b.
void add(DataType type, const void* a, const void* b, void* y, std::size_t count);

/// Copies `rows` rows of `row_bytes` between tensors whose rows are further apart.
struct RowCopy {
  std::size_t rows = 0, row_bytes = 0, from_stride = 0, to_stride = 0;  ///< bytes
};
void copy_rows(const std::byte* from, std::byte* to, const RowCopy& shape);

/// Packs every stride-th pixel of channels-last images: what a strided 1x1 convolution reads.
struct PixelGather {
  std::size_t rows = 0;     ///< of all images together: images * output height
  std::size_t columns = 0;  ///< output width
  std::size_t height = 0;   ///< output height
  std::size_t pixel_bytes = 0;
  std::size_t image_stride = 0, row_stride = 0, column_stride = 0;  ///< of the source, bytes
};
void gather_pixels(const std::byte* from, std::byte* to, const PixelGather& shape);

/// Channels-last images in bf16.
struct Pixels {
  std::size_t images = 0, height = 0, width = 0, channels = 0;
};
/// y: the mean of the 3 x 3 pixels around each one, of those inside the image. y is not x.
void mean_3x3(const std::uint16_t* x, std::uint16_t* y, const Pixels& shape);
/// Its gradient: each pixel's diff goes to those that it is the mean of. diff_x is not diff_y.
void mean_3x3_backward(const std::uint16_t* diff_y, std::uint16_t* diff_x, const Pixels& shape);

/// y = keep[i] ? x * scale : 0; y may be x.
void dropout(DataType type, const void* x, std::span<const std::uint8_t> keep, float scale, void* y);

/// probabilities = softmax(logits), both {labels.size(), classes}, may be the same memory; returns the mean
/// cross-entropy.
/// Errors: invalid_argument if a label is not in [0, classes).
double softmax_cross_entropy(const float* logits, std::span<const std::int32_t> labels, std::size_t classes,
                             float* probabilities);
/// diff = (probabilities - one_hot(label)) * scale, of `type`.
void softmax_cross_entropy_backward(DataType type, const float* probabilities, std::span<const std::int32_t> labels,
                                    std::size_t classes, float scale, void* diff);

/// running = (1 - momentum) * running + momentum * batch, the variance made unbiased by `unbias` = n / (n - 1).
void update_running(std::span<float> running, const float* batch, float momentum, float unbias);

void to_bf16(const float* from, std::uint16_t* to, std::size_t count);
void to_f32(const std::uint16_t* from, float* to, std::size_t count);

struct SgdRange {
  float* weight = nullptr;
  float* momentum = nullptr;
  const void* gradient = nullptr;
};
struct SgdFactors {
  float learning_rate = 0, momentum = 0, decay = 0, scale = 1;
};
/// g = scale * gradient + decay * w; m = momentum * m + g; w -= learning_rate * m. Serial: one thread's share.
void sgd(DataType gradient_type, const SgdRange& range, const SgdFactors& factors, std::size_t count);

}  // namespace hvd::models::onednn
