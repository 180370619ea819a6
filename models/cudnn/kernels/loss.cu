#include <cmath>

#include "models/cudnn/kernels/grid.cuh"
#include "models/cudnn/kernels/loss_element.h"

namespace hvd::models::cudnn::kernels {
namespace {

// Combines the values of a block's threads in a fixed order. All threads of the block must call this function, and all
// get the result.
template <class Combine>
__device__ float combined(float value, float (&shared)[kThreads], const Combine& combine) {
  shared[threadIdx.x] = value;
  __syncthreads();
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) shared[threadIdx.x] = combine(shared[threadIdx.x], shared[threadIdx.x + half]);
    __syncthreads();
  }
  const float result = shared[0];
  __syncthreads();
  return result;
}

struct Larger {
  __device__ float operator()(float a, float b) const { return a > b ? a : b; }
};
struct Sum {
  __device__ float operator()(float a, float b) const { return a + b; }
};

// One block per row. The block passes over its row three times, while the row stays in cache.
template <class T>
__global__ void softmax_kernel(const HVD_GRID_CONSTANT Matrix logits, const std::int32_t* labels, float* row_losses,
                               float* probabilities) {
  __shared__ float shared[kThreads];
  const std::int64_t row = blockIdx.x;
  const T* in = static_cast<const T*>(logits.data) + row * logits.pitch;
  float largest = -INFINITY;
  for (std::int64_t c = threadIdx.x; c < logits.channels; c += kThreads) largest = Larger()(largest, to_float(in[c]));
  largest = combined(largest, shared, Larger());
  float sum = 0;
  for (std::int64_t c = threadIdx.x; c < logits.channels; c += kThreads) sum += expf(to_float(in[c]) - largest);
  sum = combined(sum, shared, Sum());
  for (std::int64_t c = threadIdx.x; c < logits.channels; c += kThreads) {
    probabilities[row * logits.channels + c] = expf(to_float(in[c]) - largest) / sum;
  }
  if (threadIdx.x != 0) return;
  const std::int32_t label = labels[row];
  const bool good = label >= 0 && label < logits.channels;
  row_losses[row] = good ? logf(sum) - (to_float(in[label]) - largest) : NAN;
}

__global__ void mean_kernel(const float* values, std::int64_t count, float* mean) {
  __shared__ float shared[kThreads];
  float sum = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += kThreads) sum += values[i];
  sum = combined(sum, shared, Sum());
  if (threadIdx.x == 0) *mean = sum / static_cast<float>(count);
}

}  // namespace

void softmax_cross_entropy(const Matrix& logits, const std::int32_t* labels, float* row_losses, float* loss,
                           float* probabilities, Stream stream) {
  with_type(logits.type, "softmax_cross_entropy", [&](auto* type) {
    launch_blocks("softmax_cross_entropy", softmax_kernel<Pointee<decltype(type)>>, static_cast<unsigned>(logits.rows),
                  stream, logits, labels, row_losses, probabilities);
  });
  launch_blocks("softmax_cross_entropy", mean_kernel, 1, stream, row_losses, logits.rows, loss);
}

void softmax_cross_entropy_backward(const float* probabilities, const std::int32_t* labels, float weight,
                                    const float* loss_scale, const Matrix& dlogits, Stream stream) {
  with_type(dlogits.type, "softmax_cross_entropy_backward", [&](auto* type) {
    for_each(
        SoftmaxCrossEntropyBackwardBody<Pointee<decltype(type)>>{
            probabilities, labels, weight / static_cast<float>(dlogits.rows), loss_scale, dlogits},
        dlogits.rows * dlogits.channels, stream, "softmax_cross_entropy_backward");
  });
}

}  // namespace hvd::models::cudnn::kernels
