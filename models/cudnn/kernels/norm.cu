// Sums over rows, in two launches and a fixed order, and the kernels of batch norm that use them.
#include <algorithm>

#include "models/cudnn/kernels/grid.cuh"
#include "models/cudnn/kernels/norm_element.h"

namespace hvd::models::cudnn::kernels {
namespace {

// A block covers `lanes` vectors of channels. Blocks that cover the same channels take the rows in turn: each block
// takes `threads_down` * Term::kRowsAtOnce neighbouring rows at a time. The sums of a block's threads are added in the
// order of the threads. The division of rows depends only on the matrix, never on the GPU.
//
// On an H200 all blocks run at the same time. Blocks go from the last row to the first. The previous launch wrote the
// last rows last, so those rows are still in the L2 cache. This launch reads the first rows last, so the next launch,
// which begins with the first rows, also finds them in the cache. (H200, ResNet-101's batch norms at batch 256: the
// sums of backward take 4.7 ms in this order, but 5.6 ms from the first row to the last. The sums and the next pass
// together take 10.4 ms instead of 11.7 ms.)
constexpr std::int64_t kMaxLanes = 64;
constexpr std::int64_t kMaxBlocksOfSums = 396;  // an H200 holds three blocks of 256 threads per multiprocessor
constexpr std::int64_t kMinTurns = 2;

struct Cut {
  int lanes = 1, threads_down = 1;  ///< `lanes`: vectors of channels per block; `threads_down`: threads per vector
  std::int64_t column_blocks = 1, row_blocks = 1;
};

Cut cut(const Matrix& x, int width, int rows_at_once) {
  const auto divided_up = [](std::int64_t a, std::int64_t b) { return std::max<std::int64_t>((a + b - 1) / b, 1); };
  Cut result;
  const std::int64_t vectors = x.channels / width;
  result.column_blocks = divided_up(vectors, kMaxLanes);
  result.lanes = static_cast<int>(divided_up(vectors, result.column_blocks));
  result.threads_down = kThreads / result.lanes;
  const std::int64_t turns = divided_up(x.rows, result.threads_down * std::int64_t{rows_at_once});
  result.row_blocks =
      std::min(divided_up(turns, kMinTurns), std::max<std::int64_t>(kMaxBlocksOfSums / result.column_blocks, 1));
  return result;
}

// Adds up the rows of thread `down` of row block `block`, from the last row to the first.
template <class Term, int V>
__device__ void add_rows(const Term& term, const Cut& cut, std::int64_t block, int down, std::int64_t channel,
                         std::int64_t rows, float (&sum)[Term::kSums][V]) {
  constexpr int kAtOnce = Term::kRowsAtOnce;
  const typename Term::Channels channels = term.channels(channel);
  const std::int64_t turn = std::int64_t{cut.threads_down} * kAtOnce;
  for (std::int64_t row = rows - 1 - block * turn - down; row >= 0; row -= cut.row_blocks * turn) {
    typename Term::Row loaded[kAtOnce];
    HVD_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {  // before row 0, reads `row` again
      const std::int64_t its_row = row - std::int64_t{i} * cut.threads_down;
      loaded[i] = term.load(Place{its_row >= 0 ? its_row : row, channel});
    }
    HVD_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      if (row - std::int64_t{i} * cut.threads_down >= 0) term.add(channels, loaded[i], sum);
    }
  }
}

// Writes partial[row block][sum][channel].
template <class Term, int V>
__global__ void __launch_bounds__(kThreads, Term::kBlocks)
    partial_sums_kernel(const HVD_GRID_CONSTANT Term term, const HVD_GRID_CONSTANT Cut cut, std::int64_t rows,
                        std::int64_t channels, float* partial) {
  constexpr int kPerThread = Term::kSums * V;
  __shared__ float shared[kPerThread][kThreads + 8];  // + 8 puts neighbouring sums of 8 lanes in different banks
  const auto thread = static_cast<int>(threadIdx.x);
  const int down = thread / cut.lanes;
  const std::int64_t first_channel = std::int64_t{blockIdx.x} * cut.lanes * V;
  const std::int64_t channel = first_channel + (thread - down * cut.lanes) * V;
  float sum[Term::kSums][V] = {};
  if (down < cut.threads_down && channel < channels) {
    add_rows<Term, V>(term, cut, blockIdx.y, down, channel, rows, sum);
  }
  for (int j = 0; j < kPerThread; ++j) shared[j][thread] = sum[j / V][j % V];
  __syncthreads();
  for (int made = thread; made < kPerThread * cut.lanes; made += kThreads) {
    const int j = made / cut.lanes, lane = made - j * cut.lanes;
    const std::int64_t its_channel = first_channel + lane * V + j % V;
    if (its_channel >= channels) continue;
    float total = 0;
    for (int other = 0; other < cut.threads_down; ++other) total += shared[j][other * cut.lanes + lane];
    partial[(std::int64_t{blockIdx.y} * Term::kSums + j / V) * channels + its_channel] = total;
  }
}

// A block adds up the partial sums of 8 channels (32 bytes). It divides the row blocks into 32 ranges. It calls
// finish(channel, sums) for each channel.
constexpr int kFinishLanes = 8;
constexpr int kFinishRanges = kThreads / kFinishLanes;

template <int kSums, class Finish>
__global__ void finish_sums_kernel(const float* partial, std::int64_t row_blocks, std::int64_t channels,
                                   const HVD_GRID_CONSTANT Finish finish) {
  __shared__ float shared[kSums][kThreads];
  const int lane = static_cast<int>(threadIdx.x) % kFinishLanes;
  const int range = static_cast<int>(threadIdx.x) / kFinishLanes;
  const std::int64_t channel = std::int64_t{blockIdx.x} * kFinishLanes + lane;
  const std::int64_t per_range = (row_blocks + kFinishRanges - 1) / kFinishRanges;
  float sums[kSums] = {};
  if (channel < channels) {
    const std::int64_t last = std::min((range + 1) * per_range, row_blocks);
    for (std::int64_t b = range * per_range; b < last; ++b) {
      for (int s = 0; s < kSums; ++s) sums[s] += partial[(b * kSums + s) * channels + channel];
    }
  }
  for (int s = 0; s < kSums; ++s) shared[s][threadIdx.x] = sums[s];
  __syncthreads();
  if (range != 0 || channel >= channels) return;
  for (int s = 0; s < kSums; ++s) {
    sums[s] = 0;
    for (int other = 0; other < kFinishRanges; ++other) sums[s] += shared[s][other * kFinishLanes + lane];
  }
  finish(channel, sums);
}

template <int V, class Term, class Finish>
void sum_rows(const Matrix& x, const Term& term, const Finish& finish, void* workspace, Stream stream,
              const char* kernel) {
  auto* partial = static_cast<float*>(workspace);
  const Cut parts = cut(x, V, Term::kRowsAtOnce);
  launch_blocks(kernel, partial_sums_kernel<Term, V>,
                dim3(static_cast<unsigned>(parts.column_blocks), static_cast<unsigned>(parts.row_blocks)), stream, term,
                parts, x.rows, x.channels, partial);
  launch_blocks(kernel, finish_sums_kernel<Term::kSums, Finish>,
                static_cast<unsigned>((x.channels + kFinishLanes - 1) / kFinishLanes), stream, partial,
                parts.row_blocks, x.channels, finish);
}

struct StatisticsFinish {
  float *sum, *square_sum;
  __device__ void operator()(std::int64_t c, const float (&sums)[2]) const {
    sum[c] = sums[0];
    square_sum[c] = sums[1];
  }
};

template <class T>
struct NormStatisticsFinish {
  NormFinalizeBody<T> body;
  __device__ void operator()(std::int64_t c, const float (&sums)[2]) const { body(c, sums[0], sums[1]); }
};

template <class T>
struct BiasGradientFinish {
  T* out;
  __device__ void operator()(std::int64_t c, const float (&sums)[1]) const { out[c] = from_float<T>(sums[0]); }
};

template <class Gradient>
struct NormBackwardFinish {
  NormBackwardFinalizeBody<Gradient> body;
  __device__ void operator()(std::int64_t c, const float (&sums)[2]) const { body(c, sums[0], sums[1]); }
};

// Calls `work` with std::true_type if a rectifier follows the batch norm, else with std::false_type.
template <class Work>
void with_rectifier(const NormBackward& norm, const Work& work) {
  if (norm.rectified) {
    work(std::true_type());
  } else {
    work(std::false_type());
  }
}

}  // namespace

std::size_t row_sums_workspace(const Matrix& x, int sums) {
  const int wide = static_cast<int>(kVectorBytes / static_cast<std::int64_t>(size_of(x.type)));
  // The fewer rows a term takes at once, the more blocks there are, so one row at once needs the largest workspace.
  const std::int64_t row_blocks = std::max(cut(x, 1, 1).row_blocks, x.channels < wide ? 1 : cut(x, wide, 1).row_blocks);
  return static_cast<std::size_t>(row_blocks) * static_cast<std::size_t>(sums) * static_cast<std::size_t>(x.channels) *
         sizeof(float);
}

void statistics(const Matrix& x, float* sum, float* square_sum, void* workspace, Stream stream) {
  with_vectors(x.type, is_wide({&x}), "statistics", [&](auto* type, auto width) {
    constexpr int kWidth = decltype(width)::value;
    sum_rows<kWidth>(x, StatisticsTerm<Pointee<decltype(type)>, kWidth>{x}, StatisticsFinish{sum, square_sum},
                     workspace, stream, "statistics");
  });
}

void bias_gradient(const Matrix& dy, void* out, DataType out_type, void* workspace, Stream stream) {
  with_vectors(dy.type, is_wide({&dy}), "bias_gradient", [&](auto* type, auto width) {
    with_type(out_type, "bias_gradient", [&](auto* made) {
      constexpr int kWidth = decltype(width)::value;
      using Made = Pointee<decltype(made)>;
      sum_rows<kWidth>(dy, BiasGradientTerm<Pointee<decltype(type)>, kWidth>{dy},
                       BiasGradientFinish<Made>{static_cast<Made*>(out)}, workspace, stream, "bias_gradient");
    });
  });
}

void norm_finalize(const NormFinalize& work, Stream stream) {
  with_type(work.type, "norm_finalize", [&](auto* type) {
    for_each(NormFinalizeBody<Pointee<decltype(type)>>{work}, work.channels, stream, "norm_finalize");
  });
}

void norm_statistics(const Matrix& x, const NormFinalize& work, void* workspace, Stream stream) {
  with_vectors(x.type, is_wide({&x}), "norm_statistics", [&](auto* type, auto width) {
    with_type(work.type, "norm_statistics", [&](auto* made) {
      constexpr int kWidth = decltype(width)::value;
      sum_rows<kWidth>(x, StatisticsTerm<Pointee<decltype(type)>, kWidth>{x},
                       NormStatisticsFinish<Pointee<decltype(made)>>{{work}}, workspace, stream, "norm_statistics");
    });
  });
}

void norm_backward_weights(const NormBackward& work, void* workspace, Stream stream) {
  with_vectors(work.x.type, is_wide({&work.x, &work.dy}), "norm_backward_weights", [&](auto* type, auto width) {
    with_type(work.gradient_type, "norm_backward_weights", [&](auto* made) {
      with_rectifier(work, [&](auto rectified) {
        constexpr int kWidth = decltype(width)::value;
        using Term = NormBackwardTerm<Pointee<decltype(type)>, kWidth, decltype(rectified)::value>;
        sum_rows<kWidth>(work.x, Term{work}, NormBackwardFinish<Pointee<decltype(made)>>{{work}}, workspace, stream,
                         "norm_backward_weights");
      });
    });
  });
}

void norm_backward_apply(const NormBackward& work, const Matrix& dx, Stream stream) {
  with_vectors(dx.type, is_wide({&work.x, &work.dy, &dx}), "norm_backward_apply", [&](auto* type, auto width) {
    with_rectifier(work, [&](auto rectified) {
      using Body = NormBackwardApplyBody<Pointee<decltype(type)>, decltype(width)::value, decltype(rectified)::value>;
      for_each_row(Body{work, dx}, dx.rows, dx.channels, stream, "norm_backward_apply");
    });
  });
}

}  // namespace hvd::models::cudnn::kernels
