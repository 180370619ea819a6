// Sums over rows, in two launches and a fixed order, and what batch norm makes of them.
#include "models/cudnn/kernels/grid.cuh"

namespace hvd::models::cudnn::kernels {
namespace {

// A block covers kLanes vectors of channels and a range of rows; its threads take the rows in turn, and their sums are
// added in the order of the threads. How rows are cut depends on the matrix alone, never on the GPU.
constexpr int kMostLanes = 32;
constexpr std::int64_t kMostRowBlocks = 1024;
constexpr std::int64_t kLeastRowsPerThread = 4;

struct Cut {
  int lanes = 1;  ///< vectors of channels per block: a power of two
  std::int64_t column_blocks = 1, row_blocks = 1, rows_per_block = 1;
};

Cut cut(const Matrix& x, int width) {
  Cut result;
  const std::int64_t vectors = x.channels / width;
  while (result.lanes < kMostLanes && result.lanes < vectors) result.lanes *= 2;
  const std::int64_t threads_down = kThreads / result.lanes;
  result.column_blocks = (vectors + result.lanes - 1) / result.lanes;
  const std::int64_t wanted = (x.rows + threads_down * kLeastRowsPerThread - 1) / (threads_down * kLeastRowsPerThread);
  result.row_blocks = std::clamp<std::int64_t>(wanted, 1, kMostRowBlocks);
  result.rows_per_block = (x.rows + result.row_blocks - 1) / result.row_blocks;
  return result;
}

// partial[row block][sum][channel].
template <class Term, int V>
__global__ void partial_sums_kernel(const HVD_GRID_CONSTANT Term term, const HVD_GRID_CONSTANT Cut cut,
                                    std::int64_t rows, std::int64_t channels, float* partial) {
  constexpr int kSums = Term::kSums;
  __shared__ float shared[kSums * V][kThreads];
  const int lane = static_cast<int>(threadIdx.x) % cut.lanes;
  const int down = static_cast<int>(threadIdx.x) / cut.lanes;
  const int threads_down = kThreads / cut.lanes;
  const std::int64_t channel = (std::int64_t{blockIdx.x} * cut.lanes + lane) * V;
  float sum[kSums][V] = {};
  if (channel < channels) {
    const std::int64_t first = std::int64_t{blockIdx.y} * cut.rows_per_block;
    const std::int64_t last = std::min(first + cut.rows_per_block, rows);
    Place<V> place(0, channels);
    place.channel = channel;
    for (place.row = first + down; place.row < last; place.row += threads_down) term.add(place, sum);
  }
  for (int s = 0; s < kSums; ++s) {
    for (int k = 0; k < V; ++k) shared[s * V + k][threadIdx.x] = sum[s][k];
  }
  __syncthreads();
  if (down != 0 || channel >= channels) return;
  for (int s = 0; s < kSums; ++s) {
    for (int k = 0; k < V; ++k) {
      float total = 0;
      for (int other = 0; other < threads_down; ++other) total += shared[s * V + k][other * cut.lanes + lane];
      partial[(std::int64_t{blockIdx.y} * kSums + s) * channels + channel + k] = total;
    }
  }
}

// 32 channels and 8 ranges of row blocks per block; `finish(channel, sums)` once per channel.
constexpr int kFinishLanes = 32;
constexpr int kFinishRanges = kThreads / kFinishLanes;

template <int kSums, class Finish>
__global__ void finish_sums_kernel(const float* partial, std::int64_t row_blocks, std::int64_t channels,
                                   const HVD_GRID_CONSTANT Finish finish) {
  __shared__ float shared[kSums][kThreads];
  const int lane = static_cast<int>(threadIdx.x) % kFinishLanes;
  const int range = static_cast<int>(threadIdx.x) / kFinishLanes;
  const std::int64_t channel = std::int64_t{blockIdx.x} * kFinishLanes + lane;
  const std::int64_t per_range = (row_blocks + kFinishRanges - 1) / kFinishRanges;
  for (int s = 0; s < kSums; ++s) {
    float total = 0;
    const std::int64_t last = std::min((range + 1) * per_range, row_blocks);
    if (channel < channels) {
      for (std::int64_t b = range * per_range; b < last; ++b) total += partial[(b * kSums + s) * channels + channel];
    }
    shared[s][threadIdx.x] = total;
  }
  __syncthreads();
  if (range != 0 || channel >= channels) return;
  float sums[kSums];
  for (int s = 0; s < kSums; ++s) {
    sums[s] = 0;
    for (int other = 0; other < kFinishRanges; ++other) sums[s] += shared[s][other * kFinishLanes + lane];
  }
  finish(channel, sums);
}

template <class Term, class Finish>
void sum_rows(const Matrix& x, bool wide, const Term& term, const Finish& finish, void* workspace, Stream stream,
              const char* kernel) {
  auto* partial = static_cast<float*>(workspace);
  const auto run = [&](auto width) {
    constexpr int kWidth = decltype(width)::value;
    const Cut parts = cut(x, kWidth);
    launch_blocks(kernel, partial_sums_kernel<Term, kWidth>,
                  dim3(static_cast<unsigned>(parts.column_blocks), static_cast<unsigned>(parts.row_blocks)), stream,
                  term, parts, x.rows, x.channels, partial);
    launch_blocks(kernel, finish_sums_kernel<Term::kSums, Finish>,
                  static_cast<unsigned>((x.channels + kFinishLanes - 1) / kFinishLanes), stream, partial,
                  parts.row_blocks, x.channels, finish);
  };
  // Vectors of four whatever the type: eight would double the shared memory.
  if (wide) {
    run(Width<4>());
  } else {
    run(Width<1>());
  }
}

struct StatisticsFinish {
  float *sum, *square_sum;
  __device__ void operator()(std::int64_t c, const float (&sums)[2]) const {
    sum[c] = sums[0];
    square_sum[c] = sums[1];
  }
};

template <class T>
struct BiasGradientFinish {
  T* out;
  __device__ void operator()(std::int64_t c, const float (&sums)[1]) const { out[c] = from_float<T>(sums[0]); }
};

template <class Gradient>
struct NormBackwardFinish {
  NormBackward work;
  __device__ void operator()(std::int64_t c, const float (&sums)[2]) const {
    // The body takes arrays over channels: one channel at the address where c would be.
    NormBackwardFinalizeBody<Gradient>{work, sums - c, sums + 1 - c}(c);
  }
};

}  // namespace

std::size_t row_sums_workspace(const Matrix& x, int sums) {
  return static_cast<std::size_t>(cut(x, 1).row_blocks) * static_cast<std::size_t>(sums) *
         static_cast<std::size_t>(x.channels) * sizeof(float);
}

void statistics(const Matrix& x, float* sum, float* square_sum, void* workspace, Stream stream) {
  with_type(x.type, "statistics", [&](auto* type) {
    sum_rows(x, is_wide({&x}), StatisticsTerm<Pointee<decltype(type)>>{x}, StatisticsFinish{sum, square_sum}, workspace,
             stream, "statistics");
  });
}

void bias_gradient(const Matrix& dy, void* out, DataType out_type, void* workspace, Stream stream) {
  with_type(dy.type, "bias_gradient", [&](auto* type) {
    with_type(out_type, "bias_gradient", [&](auto* made) {
      using Made = Pointee<decltype(made)>;
      sum_rows(dy, is_wide({&dy}), BiasGradientTerm<Pointee<decltype(type)>>{dy},
               BiasGradientFinish<Made>{static_cast<Made*>(out)}, workspace, stream, "bias_gradient");
    });
  });
}

void norm_finalize(const NormFinalize& work, Stream stream) {
  with_type(work.type, "norm_finalize", [&](auto* type) {
    for_each(NormFinalizeBody<Pointee<decltype(type)>>{work}, work.channels, stream, "norm_finalize");
  });
}

void norm_backward_weights(const NormBackward& work, void* workspace, Stream stream) {
  with_type(work.x.type, "norm_backward_weights", [&](auto* type) {
    with_type(work.gradient_type, "norm_backward_weights", [&](auto* made) {
      sum_rows(work.x, is_wide({&work.x, &work.dy}), NormBackwardTerm<Pointee<decltype(type)>>{work},
               NormBackwardFinish<Pointee<decltype(made)>>{work}, workspace, stream, "norm_backward_weights");
    });
  });
}

void norm_backward_apply(const NormBackward& work, const Matrix& dx, Stream stream) {
  with_vectors(dx.type, is_wide({&work.x, &work.dy, &dx}), "norm_backward_apply", [&](auto* type, auto width) {
    constexpr int kWidth = decltype(width)::value;
    for_each(NormBackwardApplyBody<Pointee<decltype(type)>, kWidth>{work, dx}, dx.rows * (dx.channels / kWidth), stream,
             "norm_backward_apply");
  });
}

}  // namespace hvd::models::cudnn::kernels
