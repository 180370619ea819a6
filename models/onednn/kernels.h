// Kernels that oneDNN does not have, or that are faster than oneDNN's kernels: residual sums with ReLU, gradient sums,
// the loss, dropout, concatenation and the optimiser. The kernels work on flat memory in any dense layout, and run on
// the calling thread's OpenMP team. Results do not depend on the number of threads, nor on `level`, the vectors that
// the kernels with this argument use. The processor must have the level.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/base/types.h"
#include "engine/base/vector_level.h"

namespace hvd::models::onednn {

inline constexpr std::size_t kMaxSummands = 8;

/// Returns the bytes of a bit mask over `count` elements, rounded up to whole 64-bit words.
constexpr std::size_t mask_bytes(std::size_t count) noexcept { return (count + 63) / 64 * 8; }

/// Sets y = max(a + b, 0), and bit i of `mask` to y[i] > 0. y may be a or b. `type` is kF32 or kBF16.
void add_relu(DataType type, const void* a, const void* b, void* y, std::byte* mask, std::size_t count,
              VectorLevel level = vector_level());

/// Selects the elements of a sum that are kept: all, those with a set bit in `mask`, or those where `positive` > 0.
struct KeptElements {
  const std::byte* mask = nullptr;
  const void* positive = nullptr;
};
/// Sets out = sum of `parts` where `survivors` keeps the element, else 0. The 1 to kMaxSummands parts are summed in
/// order in fp32. out may be a part.
void masked_sum(DataType type, std::span<const void* const> parts, const KeptElements& survivors, void* out,
                std::size_t count, VectorLevel level = vector_level());

/// Sets y = max(x, 0); y may be x.
void relu(DataType type, const void* x, void* y, std::size_t count, VectorLevel level = vector_level());
/// Sets y = a + b; y may be a or b.
void add(DataType type, const void* a, const void* b, void* y, std::size_t count, VectorLevel level = vector_level());

/// The shape of copy_rows(), which copies `rows` rows of `row_bytes` bytes. The strides are the distances between row
/// starts, in bytes; rows need not be adjacent.
struct RowCopy {
  std::size_t rows = 0, row_bytes = 0, from_stride = 0, to_stride = 0;
};
void copy_rows(const std::byte* from, std::byte* to, const RowCopy& shape);

/// The shape of gather_pixels(), which packs the pixels that a strided 1x1 convolution reads from channels-last images.
struct PixelGather {
  std::size_t rows = 0;     ///< output rows of all images: images * output height
  std::size_t columns = 0;  ///< output width
  std::size_t height = 0;   ///< output height
  std::size_t pixel_bytes = 0;
  std::size_t image_stride = 0, row_stride = 0, column_stride = 0;  ///< distances in the source, in bytes
};
void gather_pixels(const std::byte* from, std::byte* to, const PixelGather& shape);

/// Size of channels-last images in bf16.
struct Pixels {
  std::size_t images = 0, height = 0, width = 0, channels = 0;
};
/// Sets each pixel of y to the mean of the 3 x 3 pixels of x around it, without pixels outside the image. y must not be
/// x.
void mean_3x3(const std::uint16_t* x, std::uint16_t* y, const Pixels& shape, VectorLevel level = vector_level());
/// The backward pass of mean_3x3(): divides each pixel of diff_y evenly among the pixels of diff_x at the places that
/// mean_3x3() averaged for this pixel. diff_x must not be diff_y.
void mean_3x3_backward(const std::uint16_t* diff_y, std::uint16_t* diff_x, const Pixels& shape,
                       VectorLevel level = vector_level());

/// Sets y[i] = keep[i] ? x[i] * scale : 0; y may be x.
void dropout(DataType type, const void* x, std::span<const std::uint8_t> keep, float scale, void* y,
             VectorLevel level = vector_level());

/// Sets probabilities = softmax(logits) and returns the mean cross-entropy. Both arrays have the shape
/// {labels.size(), classes}, and may be the same memory. Errors: invalid_argument if a label is not in [0, classes).
double softmax_cross_entropy(const float* logits, std::span<const std::int32_t> labels, std::size_t classes,
                             float* probabilities);
/// Sets diff = (probabilities - one_hot(label)) * scale, with elements of `type`.
void softmax_cross_entropy_backward(DataType type, const float* probabilities, std::span<const std::int32_t> labels,
                                    std::size_t classes, float scale, void* diff);

/// Sets running = (1 - momentum) * running + momentum * batch * unbias. For the variance, `unbias` is n / (n - 1).
void update_running(std::span<float> running, const float* batch, float momentum, float unbias);

void to_bf16(const float* from, std::uint16_t* to, std::size_t count, VectorLevel level = vector_level());
void to_f32(const std::uint16_t* from, float* to, std::size_t count, VectorLevel level = vector_level());

struct SgdRange {
  float* weight = nullptr;
  float* momentum = nullptr;
  const void* gradient = nullptr;
};
struct SgdFactors {
  float learning_rate = 0, momentum = 0, decay = 0, scale = 1;
};
/// Computes g = scale * gradient + decay * w; m = momentum * m + g; w -= learning_rate * m, on the calling thread only.
void sgd(DataType gradient_type, const SgdRange& range, const SgdFactors& factors, std::size_t count,
         VectorLevel level = vector_level());

}  // namespace hvd::models::onednn
