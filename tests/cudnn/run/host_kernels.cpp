// Launches our kernels through the recorder. The kernels are compiled for the host (tests/gpu/host_grid.h).
#include <functional>
#include <utility>
#include <vector>

#include "tests/cudnn/run/recorder.h"

namespace hvd::models::cudnn::testing {
namespace {

using namespace kernels;

Range bytes(const void* data, std::size_t count) {
  return {static_cast<const std::byte*>(data), data == nullptr ? 0 : count};
}
Range floats(const void* data, std::int64_t count) {
  return bytes(data, static_cast<std::size_t>(count) * sizeof(float));
}
Range range(const Matrix& matrix) {
  if (matrix.data == nullptr) return {};
  return bytes(matrix.data,
               static_cast<std::size_t>((matrix.rows - 1) * matrix.pitch + matrix.channels) * size_of(matrix.type));
}
void add(std::vector<Range>& to, const Norm& norm, std::int64_t channels) {
  for (const float* vector : {norm.mean, norm.inv_std, norm.gamma, norm.beta}) to.push_back(floats(vector, channels));
}

void record(Stream stream, const char* what, std::vector<Range> reads, std::vector<Range> writes,
            std::function<void()> body) {
  Recorder::current()->launch(stream, {std::string("own ") + what, std::move(reads), std::move(writes)},
                              std::move(body));
}

std::vector<Range> reads_of(const Epilogue& epilogue) {
  std::vector<Range> reads{range(epilogue.add), range(epilogue.test)};
  add(reads, epilogue.test_norm, epilogue.test.channels);
  return reads;
}

std::vector<Range> reads_of(const NormBackward& work) {
  std::vector<Range> reads{range(work.x), range(work.dy)};
  add(reads, work.norm, work.x.channels);
  return reads;
}

std::vector<Range> writes_of(const NormFinalize& work) {
  std::vector<Range> writes;
  for (const float* out : {work.mean, work.inv_std, work.running_mean, work.running_var}) {
    writes.push_back(floats(out, work.channels));
  }
  for (const void* out : {work.scale, work.shift}) {
    writes.push_back(bytes(out, static_cast<std::size_t>(work.channels) * size_of(work.type)));
  }
  return writes;
}

}  // namespace

kernels::Table host_kernels() {
  Table table;
  table.pointwise = [](const Pointwise& work, Stream stream) {
    std::vector<Range> reads{range(work.test)};
    const std::int64_t channels = work.out.channels;
    for (int i = 0; i < work.inputs; ++i) {
      reads.push_back(range(work.input[i]));
      add(reads, work.norm[i], channels);
    }
    add(reads, work.test_norm, channels);
    reads.push_back(bytes(work.bias, static_cast<std::size_t>(channels) * size_of(work.out.type)));
    if (work.dropout.used) {
      reads.push_back(bytes(work.dropout.step, sizeof(std::uint64_t)));
      reads.push_back(bytes(work.dropout.first_sample, sizeof(std::uint64_t)));
    }
    record(stream, "pointwise", std::move(reads), {range(work.out)}, [work] { pointwise(work, nullptr); });
  };
  table.copy_all = [](std::span<const Copy> copies, Stream stream) {
    std::vector<Range> reads, writes;
    for (const Copy& copy : copies) {
      reads.push_back(bytes(copy.from, static_cast<std::size_t>(copy.count) * size_of(copy.from_type)));
      writes.push_back(bytes(copy.to, static_cast<std::size_t>(copy.count) * size_of(copy.to_type)));
    }
    record(stream, "copy", std::move(reads), std::move(writes),
           [all = std::vector<Copy>(copies.begin(), copies.end())] { copy(all, nullptr); });
  };
  table.copy_matrix = [](const Matrix& from, const Matrix& to, Stream stream) {
    record(stream, "copy matrix", {range(from)}, {range(to)}, [from, to] { copy(from, to, nullptr); });
  };
  table.columns = [](const Window& window, const Image& x, const Image& out, Stream stream) {
    record(stream, "columns", {range(x.matrix)}, {range(out.matrix)}, [=] { columns(window, x, out, nullptr); });
  };
  table.max_pool = [](const Window& window, const Image& x, const Image& y, std::uint8_t* where, Stream stream) {
    const auto count = static_cast<std::size_t>(y.matrix.rows * y.matrix.channels);
    record(stream, "max_pool", {range(x.matrix)}, {range(y.matrix), bytes(where, count)},
           [=] { max_pool(window, x, y, where, nullptr); });
  };
  table.avg_pool = [](const Window& window, const Image& x, const Image& y, Stream stream) {
    record(stream, "avg_pool", {range(x.matrix)}, {range(y.matrix)}, [=] { avg_pool(window, x, y, nullptr); });
  };
  table.global_avg_pool = [](const Image& x, const Matrix& y, Stream stream) {
    record(stream, "global_avg_pool", {range(x.matrix)}, {range(y)}, [=] { global_avg_pool(x, y, nullptr); });
  };
  table.max_pool_backward = [](const Window& window, const std::uint8_t* where, const Image& dy, const Image& dx,
                               const Matrix& pooled, const Epilogue& epilogue, Stream stream) {
    std::vector<Range> reads = reads_of(epilogue);
    const auto count = static_cast<std::size_t>(dy.matrix.rows * dy.matrix.channels);
    reads.insert(reads.end(), {range(dy.matrix), range(pooled), bytes(where, count)});
    record(stream, "max_pool_backward", std::move(reads), {range(dx.matrix)},
           [=] { max_pool_backward(window, where, dy, dx, pooled, epilogue, nullptr); });
  };
  table.avg_pool_backward = [](const Window& window, const Image& dy, const Image& dx, const Epilogue& epilogue,
                               Stream stream) {
    std::vector<Range> reads = reads_of(epilogue);
    reads.push_back(range(dy.matrix));
    record(stream, "avg_pool_backward", std::move(reads), {range(dx.matrix)},
           [=] { avg_pool_backward(window, dy, dx, epilogue, nullptr); });
  };
  table.global_avg_pool_backward = [](const Matrix& dy, const Image& dx, const Epilogue& epilogue, Stream stream) {
    std::vector<Range> reads = reads_of(epilogue);
    reads.push_back(range(dy));
    record(stream, "global_avg_pool_backward", std::move(reads), {range(dx.matrix)},
           [=] { global_avg_pool_backward(dy, dx, epilogue, nullptr); });
  };
  table.row_sums_workspace = &row_sums_workspace;
  table.statistics = [](const Matrix& x, float* sum, float* square_sum, void* workspace, Stream stream) {
    record(stream, "statistics", {range(x)},
           {floats(sum, x.channels), floats(square_sum, x.channels), bytes(workspace, row_sums_workspace(x, 2))},
           [=] { statistics(x, sum, square_sum, workspace, nullptr); });
  };
  table.bias_gradient = [](const Matrix& dy, void* out, DataType type, void* workspace, Stream stream) {
    record(stream, "bias_gradient", {range(dy)},
           {bytes(out, static_cast<std::size_t>(dy.channels) * size_of(type)),
            bytes(workspace, row_sums_workspace(dy, 1))},
           [=] { bias_gradient(dy, out, type, workspace, nullptr); });
  };
  table.norm_finalize = [](const NormFinalize& work, Stream stream) {
    std::vector<Range> reads;
    for (const float* in : {work.sum, work.square_sum, work.gamma, work.beta})
      reads.push_back(floats(in, work.channels));
    record(stream, "norm_finalize", std::move(reads), writes_of(work), [work] { norm_finalize(work, nullptr); });
  };
  table.norm_statistics = [](const Matrix& x, const NormFinalize& work, void* workspace, Stream stream) {
    std::vector<Range> writes = writes_of(work);
    writes.push_back(bytes(workspace, row_sums_workspace(x, 2)));
    record(stream, "norm_statistics", {range(x), floats(work.gamma, work.channels), floats(work.beta, work.channels)},
           std::move(writes), [=] { norm_statistics(x, work, workspace, nullptr); });
  };
  table.norm_backward_weights = [](const NormBackward& work, void* workspace, Stream stream) {
    const std::int64_t c = work.x.channels;
    const std::size_t vector = static_cast<std::size_t>(c) * size_of(work.gradient_type);
    record(stream, "norm_backward_weights", reads_of(work),
           {floats(work.a, c), floats(work.b, c), floats(work.c, c), bytes(work.dgamma, vector),
            bytes(work.dbeta, vector), bytes(workspace, row_sums_workspace(work.x, 2))},
           [=] { norm_backward_weights(work, workspace, nullptr); });
  };
  table.norm_backward_apply = [](const NormBackward& work, const Matrix& dx, Stream stream) {
    std::vector<Range> reads = reads_of(work);
    for (const float* vector : {work.a, work.b, work.c}) reads.push_back(floats(vector, dx.channels));
    record(stream, "norm_backward_apply", std::move(reads), {range(dx)},
           [=] { norm_backward_apply(work, dx, nullptr); });
  };
  table.softmax_cross_entropy = [](const Matrix& logits, const std::int32_t* labels, float* rows, float* loss,
                                   float* probabilities, Stream stream) {
    record(stream, "softmax_cross_entropy", {range(logits), floats(labels, logits.rows)},
           {floats(rows, logits.rows), floats(loss, 1), floats(probabilities, logits.rows * logits.channels)},
           [=] { softmax_cross_entropy(logits, labels, rows, loss, probabilities, nullptr); });
  };
  table.softmax_cross_entropy_backward = [](const float* probabilities, const std::int32_t* labels, float weight,
                                            const float* scale, const Matrix& dlogits, Stream stream) {
    record(stream, "softmax_cross_entropy_backward",
           {floats(probabilities, dlogits.rows * dlogits.channels), floats(labels, dlogits.rows), floats(scale, 1)},
           {range(dlogits)},
           [=] { softmax_cross_entropy_backward(probabilities, labels, weight, scale, dlogits, nullptr); });
  };
  table.sgd = [](const Sgd& work, Stream stream) {
    const auto count = static_cast<std::size_t>(work.count);
    record(stream, "sgd",
           {bytes(work.gradients, count * size_of(work.gradient_type)), bytes(work.decays, count / 64),
            bytes(work.scalars, sizeof(StepScalars)), bytes(work.loss_scale, sizeof(LossScale))},
           {floats(work.weights, work.count), floats(work.momentum, work.count),
            bytes(work.copy, count * size_of(work.copy_type))},
           [work] { sgd(work, nullptr); });
  };
  table.find_overflow = [](const void* gradients, DataType type, std::int64_t count, LossScale* scale, Stream stream) {
    record(stream, "find_overflow", {bytes(gradients, static_cast<std::size_t>(count) * size_of(type))},
           {bytes(scale, sizeof *scale)}, [=] { find_overflow(gradients, type, count, scale, nullptr); });
  };
  table.adjust_loss_scale = [](LossScale* scale, std::int32_t interval, Stream stream) {
    record(stream, "adjust_loss_scale", {}, {bytes(scale, sizeof *scale)},
           [=] { adjust_loss_scale(scale, interval, nullptr); });
  };
  table.synthetic_batch = [](const Synthetic& work, const Matrix& images, std::int32_t* labels, Stream stream) {
    record(stream, "synthetic_batch", {bytes(work.first_sample, sizeof(std::uint64_t))},
           {range(images), floats(labels, work.samples)}, [=] { synthetic_batch(work, images, labels, nullptr); });
  };
  return table;
}

}  // namespace hvd::models::cudnn::testing
