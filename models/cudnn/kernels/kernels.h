// Kernels of our own: what cuDNN and cuBLASLt do not do in a training step, each one launch (sums over pixels: two).
// They are limited by memory, so each reads and writes every tensor once. Plain interface: no CUDA header is needed to
// call them. Every function enqueues on `stream` and does not wait; pointers are device pointers unless said otherwise.
// Errors: backend, with the CUDA runtime's words, when a launch is refused; invalid_argument for shapes that a kernel
// does not take.
//
// The work on one element is in the element headers, which compile for the host too: tests run it there against the
// reference.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/base/types.h"
#include "models/graph/graph.h"

struct CUstream_st;

namespace hvd::models::cudnn::kernels {

using Stream = CUstream_st*;  // cudaStream_t

/// A view of {rows, channels} elements; a row is a pixel, or a sample of a matrix. `pitch` elements from row to row:
/// more than `channels` for a slice of a concatenation.
struct Matrix {
  void* data = nullptr;
  DataType type = DataType::kF32;  ///< fp32, fp16 or bf16
  std::int64_t rows = 0, channels = 0, pitch = 0;
};

/// Batch norm from its saved statistics: (x - mean) * inv_std * gamma + beta. Vectors of `channels` fp32 elements;
/// mean == nullptr: none.
struct Norm {
  const float *mean = nullptr, *inv_std = nullptr, *gamma = nullptr, *beta = nullptr;
};

/// Which elements a dropout keeps, from the counter-based generator of models/dropout.h.
struct Dropout {
  bool used = false;
  double rate = 0;
  std::uint64_t seed = 0;            ///< StepOptions::seed
  std::uint64_t stream = 0;          ///< DropoutAttr::stream
  std::int64_t rows_per_sample = 1;  ///< pixels
  /// Training step, and global index of the first sample: on the device, so that a captured graph follows them.
  const std::uint64_t *step = nullptr, *first_sample = nullptr;
};

/// out = mask(dropout(relu(sum of norm(input) + bias))), each part optional, in this order. Rows and channels of all
/// matrices are equal; types are equal.
struct Pointwise {
  static constexpr int kMaxInputs = 8;
  Matrix out;
  int inputs = 1;
  Matrix input[kMaxInputs] = {};
  Norm norm[kMaxInputs] = {};
  const void* bias = nullptr;  ///< `channels` elements of the matrices' type
  bool relu = false;
  Dropout dropout = {};
  Matrix test = {};  ///< a rectifier's backward: zero where norm(test) is not positive; data == nullptr: none
  Norm test_norm = {};
};
void pointwise(const Pointwise& work, Stream stream);

/// Copies and conversions, up to kMaxCopies in one launch: to[i] = from[i], flat, `count` elements.
struct Copy {
  const void* from = nullptr;
  void* to = nullptr;
  DataType from_type = DataType::kF32, to_type = DataType::kF32;
  std::int64_t count = 0;
};
inline constexpr std::size_t kMaxCopies = 32;
void copy(std::span<const Copy> copies, Stream stream);
/// A matrix, whatever gaps each has, to another type too.
void copy(const Matrix& from, const Matrix& to, Stream stream);

// ---- Pools: images {n, h, w, channels} ----

struct Image {
  Matrix matrix;  ///< rows = n * h * w
  std::int64_t n = 0, h = 0, w = 0;
};
/// Of the window of columns(), all channels together.
inline constexpr std::int64_t kMostWindowElements = 4096;
/// Row p of `out` holds the window of pixel p, {kernel_h, kernel_w, channels of x}, zeroes outside of the image and in
/// the channels behind. `out` is the image of the windows: h and w are the convolution's. Errors: invalid_argument for
/// a window of more than kMostWindowElements.
void columns(const Window& window, const Image& x, const Image& out, Stream stream);
/// `where` is {n, oh, ow, channels}, uint8: the index of the first maximum in its window, row by row.
void max_pool(const Window& window, const Image& x, const Image& y, std::uint8_t* where, Stream stream);
void avg_pool(const Window& window, const Image& x, const Image& y, Stream stream);
/// y {n, channels}.
void global_avg_pool(const Image& x, const Matrix& y, Stream stream);

/// What follows where each element of a diff is made: the sum of earlier diffs, then a rectifier's backward.
struct Epilogue {
  Matrix add = {};   ///< data == nullptr: none
  Matrix test = {};  ///< data == nullptr: none
  Norm test_norm = {};
};
/// dx[i] = sum of dy over the windows whose maximum i was; with `pooled`, of dy where the pooled output is positive.
void max_pool_backward(const Window& window, const std::uint8_t* where, const Image& dy, const Image& dx,
                       const Matrix& pooled, const Epilogue& epilogue, Stream stream);
void avg_pool_backward(const Window& window, const Image& dy, const Image& dx, const Epilogue& epilogue, Stream stream);
void global_avg_pool_backward(const Matrix& dy, const Image& dx, const Epilogue& epilogue, Stream stream);

// ---- Batch norm in pieces, and other sums over rows ----

/// Sums over rows are taken in a fixed order: partial sums of fixed blocks of rows into `workspace`, then those in
/// turn. Bytes of workspace for `x`.
std::size_t row_sums_workspace(const Matrix& x, int sums);
/// sum[c] = sum of x, square_sum[c] = sum of x * x; fp32.
void statistics(const Matrix& x, float* sum, float* square_sum, void* workspace, Stream stream);
/// out[c] = sum of dy, in `type`.
void bias_gradient(const Matrix& dy, void* out, DataType type, void* workspace, Stream stream);

struct NormFinalize {
  const float *sum = nullptr, *square_sum = nullptr, *gamma = nullptr, *beta = nullptr;
  float *running_mean = nullptr, *running_var = nullptr;
  float *mean = nullptr, *inv_std = nullptr;
  void *scale = nullptr, *shift = nullptr;  ///< in `type`; no operation reads them
  DataType type = DataType::kF16;
  std::int64_t channels = 0, count = 0;  ///< elements per channel
  float epsilon = 0, momentum = 0;
};
void norm_finalize(const NormFinalize& work, Stream stream);
/// statistics() and norm_finalize() in one; `work` comes without sums.
void norm_statistics(const Matrix& x, const NormFinalize& work, void* workspace, Stream stream);

/// The first pass of a batch norm's backward. dy is masked where norm(x) is not positive, if `rectified`.
struct NormBackward {
  Matrix x, dy;
  Norm norm = {};
  bool rectified = false;
  void *dgamma = nullptr, *dbeta = nullptr;  ///< in `gradient_type`
  DataType gradient_type = DataType::kF32;
  float *a = nullptr, *b = nullptr, *c = nullptr;  ///< made by the first pass, read by the second
};
void norm_backward_weights(const NormBackward& work, void* workspace, Stream stream);
/// The second: dx = a * dy + b * x + c.
void norm_backward_apply(const NormBackward& work, const Matrix& dx, Stream stream);

// ---- Loss and update ----

/// Row losses -log softmax(logits)[label] into `row_losses` (fp32, rows), their mean into `loss`, probabilities fp32
/// {rows, channels}. A label outside [0, channels) makes its row's loss NaN.
void softmax_cross_entropy(const Matrix& logits, const std::int32_t* labels, float* row_losses, float* loss,
                           float* probabilities, Stream stream);
/// dlogits = (probabilities - onehot(label)) * weight / rows * *loss_scale.
void softmax_cross_entropy_backward(const float* probabilities, const std::int32_t* labels, float weight,
                                    const float* loss_scale, const Matrix& dlogits, Stream stream);

/// What the host says about a step, in device memory, so that a captured graph follows it.
struct StepScalars {
  float learning_rate = 0, momentum = 0, weight_decay = 0;
  float gradient_scale = 1;  ///< 1 / world size where the engine summed
  std::uint64_t step = 0, first_sample = 0;
};
/// The factor of the loss that keeps 16-bit gradients in range, in device memory: nothing on the host knows in time
/// whether a step overflowed.
struct LossScale {
  float scale = 1;
  std::int32_t overflow = 0;    ///< not 0: a gradient of this step is not finite
  std::int32_t good_steps = 0;  ///< since the scale last changed
  std::int32_t skipped = 0;     ///< steps, in all
};
struct Sgd {
  float* weights = nullptr;   ///< fp32 master
  float* momentum = nullptr;  ///< fp32
  const void* gradients = nullptr;
  DataType gradient_type = DataType::kF32;
  void* copy = nullptr;  ///< 16-bit weights that the operations read; nullptr: they read the master
  DataType copy_type = DataType::kF16;
  const std::uint8_t* decays = nullptr;  ///< per slot block of 64 elements: whether weight decay applies
  std::int64_t count = 0;                ///< elements of the arenas, a multiple of 64
  const StepScalars* scalars = nullptr;
  const LossScale* loss_scale = nullptr;  ///< after an overflow everything is left as it is
};
/// g = gradient_scale / loss_scale * gradient + decay * w; m = momentum * m + g; w -= learning_rate * m; copy = w.
void sgd(const Sgd& work, Stream stream);
/// overflow becomes 1 if any of `count` gradients (a multiple of 64) is infinite or NaN, and is left alone otherwise.
void find_overflow(const void* gradients, DataType type, std::int64_t count, LossScale* loss_scale, Stream stream);
/// After the update: half the scale after an overflow, twice the scale after `growth_interval` good steps in a row,
/// within [1, 2^24]; then clears the overflow. Source: Micikevicius et al., arXiv:1710.03740, section 3.2.
void adjust_loss_scale(LossScale* loss_scale, std::int32_t growth_interval, Stream stream);

// ---- Input ----

/// The images and labels of synthetic_batch() (models/synthetic.h): labels bit for bit, images to the rounding of the
/// logarithm and the cosine, then rounded to the matrix's type. Gaps between the matrix's rows are left alone.
struct Synthetic {
  std::uint64_t seed = 1;
  std::int64_t image_elements = 0, classes = 0, samples = 0;
  const std::uint64_t* first_sample = nullptr;  ///< on the device
};
void synthetic_batch(const Synthetic& work, const Matrix& images, std::int32_t* labels, Stream stream);

}  // namespace hvd::models::cudnn::kernels
