// Our own kernels, for the work in a training step that cuDNN and cuBLASLt do not do. Most functions make one launch;
// sums over rows take two launches. Memory bandwidth limits the kernels, so a launch reads or writes each tensor only
// once. Callers need no CUDA header. Every function enqueues on `stream` and does not wait. Pointers are device
// pointers unless stated otherwise. Errors: backend, with the CUDA runtime's message, if a launch is refused;
// invalid_argument for shapes that a kernel does not support.
//
// The headers *_element.h have the work on one element. Tests compile these headers for the host and check the results.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/base/types.h"
#include "models/graph/graph.h"

struct CUstream_st;

namespace hvd::models::cudnn::kernels {

using Stream = CUstream_st*;  // cudaStream_t

/// A view of {rows, channels} elements. A row is a pixel, or a sample in tensors without pixels. Rows begin `pitch`
/// elements apart. In a slice of a concatenation, `pitch` is larger than `channels`.
struct Matrix {
  void* data = nullptr;
  DataType type = DataType::kF32;  ///< fp32, fp16 or bf16
  std::int64_t rows = 0, channels = 0, pitch = 0;
};

/// Batch norm: (x - mean) * inv_std * gamma + beta. Vectors have `channels` fp32 elements. mean == nullptr: no norm.
struct Norm {
  const float *mean = nullptr, *inv_std = nullptr, *gamma = nullptr, *beta = nullptr;
};

/// Decides which elements a dropout keeps, by the counter-based generator of models/random.h.
struct Dropout {
  bool used = false;
  double rate = 0;
  std::uint64_t seed = 0;            ///< StepOptions::seed
  std::uint64_t stream = 0;          ///< DropoutAttr::stream
  std::int64_t rows_per_sample = 1;  ///< pixels of a sample
  /// The training step, and the global index of the batch's first sample. Both are in device memory, so that a captured
  /// graph reads new values.
  const std::uint64_t *step = nullptr, *first_sample = nullptr;
};

/// out = mask(dropout(relu(sum of norm(input) + bias))). Each part is optional. All matrices have equal rows, channels
/// and types.
struct Pointwise {
  static constexpr int kMaxInputs = 8;
  Matrix out;
  int inputs = 1;
  Matrix input[kMaxInputs] = {};
  Norm norm[kMaxInputs] = {};
  const void* bias = nullptr;  ///< `channels` elements of the matrices' type
  bool relu = false;
  Dropout dropout = {};
  /// mask() is a rectifier's backward: zero where test_norm(test) is not positive. test.data == nullptr: no mask.
  Matrix test = {};
  Norm test_norm = {};
};
void pointwise(const Pointwise& work, Stream stream);

/// A copy or conversion of contiguous elements: to[i] = from[i] for i < count.
struct Copy {
  const void* from = nullptr;
  void* to = nullptr;
  DataType from_type = DataType::kF32, to_type = DataType::kF32;
  std::int64_t count = 0;
};
inline constexpr std::size_t kMaxCopies = 32;  ///< most copies in one launch
void copy(std::span<const Copy> copies, Stream stream);
/// Copies a matrix. Pitches and types may differ.
void copy(const Matrix& from, const Matrix& to, Stream stream);

// ---- Pools: images {n, h, w, channels} ----

struct Image {
  Matrix matrix;  ///< rows = n * h * w
  std::int64_t n = 0, h = 0, w = 0;
};
/// Largest window that columns() supports, in elements of all its channels.
inline constexpr std::int64_t kMaxWindowElements = 4096;
/// Writes the window of output pixel p, {kernel_h, kernel_w, channels of x}, to row p of `out`. Window elements outside
/// of the image become zero, and so do channels of `out` after the window. `out` has h and w of the convolution's
/// output. Errors: invalid_argument for a window of more than kMaxWindowElements elements.
void columns(const Window& window, const Image& x, const Image& out, Stream stream);
/// `where`: {n, oh, ow, channels}, uint8, the index of each window's first maximum, counted row by row.
void max_pool(const Window& window, const Image& x, const Image& y, std::uint8_t* where, Stream stream);
void avg_pool(const Window& window, const Image& x, const Image& y, Stream stream);
/// `y`: {n, channels}.
void global_avg_pool(const Image& x, const Matrix& y, Stream stream);

/// Work on a diff (gradient of an activation) before it is written: first adds earlier diffs, then masks by `test`.
struct Epilogue {
  Matrix add = {};   ///< data == nullptr: nothing is added
  Matrix test = {};  ///< data == nullptr: nothing is masked
  Norm test_norm = {};
};
/// dx[i] = sum of dy over windows with their maximum at i. If `pooled` (the pool's output) is given, the sum leaves out
/// windows where pooled is not positive.
void max_pool_backward(const Window& window, const std::uint8_t* where, const Image& dy, const Image& dx,
                       const Matrix& pooled, const Epilogue& epilogue, Stream stream);
void avg_pool_backward(const Window& window, const Image& dy, const Image& dx, const Epilogue& epilogue, Stream stream);
void global_avg_pool_backward(const Matrix& dy, const Image& dx, const Epilogue& epilogue, Stream stream);

// ---- Batch norm in pieces, and other sums over rows ----

/// Returns the bytes of workspace for sums over the rows of `x`, if each channel has `sums` sums. The order of each sum
/// is fixed: fixed blocks of rows give partial sums in `workspace`, which are then added in turn.
std::size_t row_sums_workspace(const Matrix& x, int sums);
/// sum[c] = sum of x, square_sum[c] = sum of x * x; fp32.
void statistics(const Matrix& x, float* sum, float* square_sum, void* workspace, Stream stream);
/// out[c] = sum of dy over its rows, in `type`.
void bias_gradient(const Matrix& dy, void* out, DataType type, void* workspace, Stream stream);

struct NormFinalize {
  const float *sum = nullptr, *square_sum = nullptr, *gamma = nullptr, *beta = nullptr;
  float *running_mean = nullptr, *running_var = nullptr;
  float *mean = nullptr, *inv_std = nullptr;
  /// scale = gamma * inv_std; shift = beta - mean * scale; no operation reads them.
  void *scale = nullptr, *shift = nullptr;
  DataType type = DataType::kF16;        ///< of scale and shift
  std::int64_t channels = 0, count = 0;  ///< `count`: elements per channel
  float epsilon = 0, momentum = 0;
};
void norm_finalize(const NormFinalize& work, Stream stream);
/// Does statistics() and norm_finalize() together. Ignores work.sum and work.square_sum.
void norm_statistics(const Matrix& x, const NormFinalize& work, void* workspace, Stream stream);

/// A batch norm's backward, in two passes. If `rectified`, dy counts as 0 where norm(x) is not positive.
struct NormBackward {
  Matrix x, dy;
  Norm norm = {};
  bool rectified = false;
  void *dgamma = nullptr, *dbeta = nullptr;  ///< in `gradient_type`
  DataType gradient_type = DataType::kF32;
  float *a = nullptr, *b = nullptr, *c = nullptr;  ///< written by the first pass, read by the second
};
/// Runs the first pass: writes dgamma, dbeta, a, b and c.
void norm_backward_weights(const NormBackward& work, void* workspace, Stream stream);
/// Runs the second pass: dx = a * dy + b * x + c.
void norm_backward_apply(const NormBackward& work, const Matrix& dx, Stream stream);

// ---- Loss and update ----

/// Writes -log softmax(logits)[label] to `row_losses` {rows}, their mean to `loss`, and softmax(logits) to
/// `probabilities` {rows, channels}, all fp32. A label outside [0, channels) makes its row's loss NaN.
void softmax_cross_entropy(const Matrix& logits, const std::int32_t* labels, float* row_losses, float* loss,
                           float* probabilities, Stream stream);
/// dlogits = (probabilities - onehot(label)) * weight / rows * *loss_scale.
void softmax_cross_entropy_backward(const float* probabilities, const std::int32_t* labels, float weight,
                                    const float* loss_scale, const Matrix& dlogits, Stream stream);

/// Numbers that the host sets for a step. The numbers are in device memory, so that a captured graph reads new values.
struct StepScalars {
  float learning_rate = 0, momentum = 0, weight_decay = 0;
  float gradient_scale = 1;  ///< 1 / world size if the engine adds gradients without averaging
  std::uint64_t step = 0, first_sample = 0;
};
/// The factor of the loss that keeps 16-bit gradients in range. The factor is on the device, because the host learns of
/// overflows too late to adjust the factor.
struct LossScale {
  float scale = 1;
  std::int32_t overflow = 0;    ///< not 0: a gradient of this step is not finite
  std::int32_t good_steps = 0;  ///< number of steps without overflow since the scale last changed
  std::int32_t skipped = 0;     ///< number of steps skipped so far
};
struct Sgd {
  float* weights = nullptr;   ///< fp32 master weights
  float* momentum = nullptr;  ///< fp32
  const void* gradients = nullptr;
  DataType gradient_type = DataType::kF32;
  void* copy = nullptr;  ///< 16-bit weights that operations read; nullptr: operations read `weights`
  DataType copy_type = DataType::kF16;
  const std::uint8_t* decays = nullptr;  ///< one per 64 elements: not 0 if weight decay applies to these elements
  std::int64_t count = 0;                ///< elements of the arenas, a multiple of 64
  const StepScalars* scalars = nullptr;
  const LossScale* loss_scale = nullptr;  ///< if `overflow` is set, sgd() changes nothing
};
/// g = gradient_scale / loss_scale * gradient + decay * w; m = momentum * m + g; w -= learning_rate * m; copy = w.
void sgd(const Sgd& work, Stream stream);
/// Sets loss_scale->overflow to 1 if any of `count` gradients (a multiple of 64) is infinite or NaN, else does not
/// change it.
void find_overflow(const void* gradients, DataType type, std::int64_t count, LossScale* loss_scale, Stream stream);
/// Call this function after the update. Halves the scale after an overflow, and doubles the scale after
/// `growth_interval` steps in a row without overflow. The scale stays within [1, 2^24]. Finally clears `overflow`.
/// Source: Micikevicius et al., arXiv:1710.03740, section 3.2.
void adjust_loss_scale(LossScale* loss_scale, std::int32_t growth_interval, Stream stream);

// ---- Input ----

/// Makes the batch of models/random.h's synthetic_batch() on the device. Labels equal the host's bit for bit. Images
/// differ from the host's by the rounding of log, cos and the matrix's type. Gaps between rows keep their contents.
struct Synthetic {
  std::uint64_t seed = 1;
  std::int64_t image_elements = 0, classes = 0, samples = 0;
  const std::uint64_t* first_sample = nullptr;  ///< on the device
};
void synthetic_batch(const Synthetic& work, const Matrix& images, std::int32_t* labels, Stream stream);

}  // namespace hvd::models::cudnn::kernels
