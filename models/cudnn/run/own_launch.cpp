#include "models/cudnn/run/own_launch.h"

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/assert.h"
#include "engine/base/error.h"

namespace hvd::models::cudnn {
namespace {

using kernels::Stream;

/// A matrix, or a batch norm applied to a matrix.
struct Source {
  kernels::Matrix matrix = {};
  kernels::Norm norm = {};
};

// The operations of one group and their operands. A batch norm that the group applies is not listed as an
// operation, but is part of the operand of the operation that reads the norm's output.
class Reader {
 public:
  Reader(const Addresses& at, const Group& group) : at_(at) {
    for (const Operation& operation : group.operations) {
      if (operation.type == OpType::kNormApply) {
        applied_[operation.outputs[0]] = &operation;
      } else {
        operations_.push_back(&operation);
      }
    }
    if (operations_.empty()) {  // the group is one batch norm
      HVD_ASSERT(applied_.size() == 1);
      operations_.push_back(applied_.begin()->second);
    }
  }

  [[nodiscard]] float* floats(ValueId id) const {
    HVD_ASSERT(at_.program().value(id).type == DataType::kF32);
    return reinterpret_cast<float*>(at_.at(id));
  }
  [[nodiscard]] kernels::Norm norm(const Operation& apply) const {  // inputs: x, mean, inv_std, gamma, beta
    return {.mean = floats(apply.inputs[1]),
            .inv_std = floats(apply.inputs[2]),
            .gamma = floats(apply.inputs[3]),
            .beta = floats(apply.inputs[4])};
  }
  [[nodiscard]] Source source(ValueId id) const {
    const auto applied = applied_.find(id);
    if (applied == applied_.end()) return {.matrix = at_.matrix(id), .norm = {}};
    const Operation& apply = *applied->second;
    return {.matrix = at_.matrix(apply.inputs[0]), .norm = norm(apply)};
  }
  /// Returns the group's operations, except batch norms that are part of an operand.
  [[nodiscard]] const std::vector<const Operation*>& operations() const { return operations_; }
  [[nodiscard]] const Addresses& at() const { return at_; }
  [[nodiscard]] const Shape& shape(ValueId id) const { return at_.program().value(id).shape; }
  [[nodiscard]] DataType type(ValueId id) const { return at_.program().value(id).type; }

 private:
  const Addresses& at_;
  std::map<ValueId, const Operation*> applied_;
  std::vector<const Operation*> operations_;
};

[[noreturn]] void refuse(const Group& group) {
  throw Error(Errc::kInvalidArgument, "no kernel of ours runs " + operations_text(group));
}

kernels::Dropout dropout_of(const Reader& read, const Operation& operation, const OwnContext& context) {
  const auto& attr = std::get<DropoutAttr>(operation.attr);
  const Shape& shape = read.shape(operation.inputs[0]);
  return {.used = true,
          .rate = attr.rate,
          .seed = context.seed,
          .stream = attr.stream,
          .rows_per_sample = shape.rank() == 4 ? shape[1] * shape[2] : 1,
          .step = &context.scalars->step,
          .first_sample = &context.scalars->first_sample};
}

// The kernel computes in this order: batch norms, sum, bias, rectifier, dropout, mask by `test`.
Launch pointwise(const Reader& read, const Group& group, const OwnContext& context) {
  HVD_ASSERT(group.writes.size() == 1);
  kernels::Pointwise work;
  work.out = read.at().matrix(group.writes[0]);
  work.inputs = 0;
  ValueId current = kNoValue;  // the value that `work` computes so far
  const auto take_in = [&](ValueId id) {
    if (id == current) return;
    if (work.inputs == kernels::Pointwise::kMaxInputs || work.bias != nullptr || work.relu || work.dropout.used) {
      refuse(group);
    }
    const Source source = read.source(id);
    work.input[work.inputs] = source.matrix;
    work.norm[work.inputs++] = source.norm;
  };
  for (const Operation* operation : read.operations()) {
    if (work.test.data != nullptr) refuse(group);
    switch (operation->type) {
      case OpType::kNormApply: take_in(operation->outputs[0]); break;
      case OpType::kAdd: std::for_each(operation->inputs.begin(), operation->inputs.end(), take_in); break;
      case OpType::kBias:
        take_in(operation->inputs[0]);
        work.bias = read.at().at(operation->inputs[1]);
        break;
      case OpType::kRelu:
        take_in(operation->inputs[0]);
        work.relu = true;
        break;
      case OpType::kDropout:
      case OpType::kDropoutBackward:
        take_in(operation->inputs[0]);
        work.dropout = dropout_of(read, *operation, context);
        break;
      case OpType::kReluBackward: {
        take_in(operation->inputs[1]);
        const Source test = read.source(operation->inputs[0]);
        work.test = test.matrix;
        work.test_norm = test.norm;
        break;
      }
      default: refuse(group);
    }
    current = operation->outputs[0];
  }
  return [run = context.kernels.pointwise, work](Stream stream) { run(work, stream); };
}

// Gives `whole`, a matrix without gaps, the rows and channels of `like`, which has equally many elements.
void see_as(const kernels::Matrix& like, kernels::Matrix& whole) {
  HVD_ASSERT(whole.pitch == whole.channels && whole.rows * whole.channels == like.rows * like.channels);
  whole.rows = like.rows;
  whole.channels = whole.pitch = like.channels;
}

// One launch copies all vectors and all tensors that are not slices. Each slice takes a launch of its own.
Launch copies(const Reader& read, const OwnContext& context) {
  std::vector<kernels::Copy> flat;
  std::vector<std::pair<kernels::Matrix, kernels::Matrix>> matrices;
  for (const Operation* operation : read.operations()) {
    kernels::Matrix from = read.at().matrix(operation->inputs[0]), to = read.at().matrix(operation->outputs[0]);
    if (from.channels < to.channels) see_as(to, from);
    if (to.channels < from.channels) see_as(from, to);
    if (from.pitch != from.channels || to.pitch != to.channels) {
      matrices.emplace_back(from, to);
    } else {
      flat.push_back({.from = from.data,
                      .to = to.data,
                      .from_type = from.type,
                      .to_type = to.type,
                      .count = from.rows * from.channels});
    }
  }
  return [table = context.kernels, flat = std::move(flat), matrices = std::move(matrices)](Stream stream) {
    if (!flat.empty()) table.copy_all(flat, stream);
    for (const auto& [from, to] : matrices) table.copy_matrix(from, to, stream);
  };
}

// ---- Pools ----

Launch pool(const Reader& read, const Operation& operation, const OwnContext& context) {
  const kernels::Image x = read.at().image(operation.inputs[0]);
  if (operation.type == OpType::kGlobalAvgPool) {
    return [run = context.kernels.global_avg_pool, x, y = read.at().matrix(operation.outputs[0])](Stream stream) {
      run(x, y, stream);
    };
  }
  const kernels::Image y = read.at().image(operation.outputs[0]);
  const Window window = std::get<Window>(operation.attr);
  if (operation.type == OpType::kAvgPool) {
    return [run = context.kernels.avg_pool, window, x, y](Stream stream) { run(window, x, y, stream); };
  }
  auto* where = reinterpret_cast<std::uint8_t*>(read.at().at(operation.outputs[1]));
  return [run = context.kernels.max_pool, window, x, y, where](Stream stream) { run(window, x, y, where, stream); };
}

// Runs "[drelu] pool [add] [drelu]": the first drelu works on the pooled diff, and add and the last drelu work on each
// element of dx.
Launch pool_backward(const Reader& read, const Group& group, const OwnContext& context) {
  const auto& operations = read.operations();
  std::size_t i = 0;
  kernels::Matrix pooled;
  ValueId dy = kNoValue;
  if (operations[0]->type == OpType::kReluBackward) {
    pooled = read.source(operations[0]->inputs[0]).matrix;
    dy = operations[0]->inputs[1];
    ++i;
  }
  const Operation& pool = *operations[i++];
  if (dy == kNoValue) dy = pool.inputs.back();
  kernels::Epilogue epilogue;
  if (i < operations.size() && operations[i]->type == OpType::kAdd) {
    HVD_ASSERT(operations[i]->inputs.size() == 2);
    epilogue.add = read.at().matrix(operations[i++]->inputs[1]);
  }
  if (i < operations.size() && operations[i]->type == OpType::kReluBackward) {
    const Source test = read.source(operations[i++]->inputs[0]);
    epilogue.test = test.matrix;
    epilogue.test_norm = test.norm;
  }
  if (i != operations.size() || group.writes.size() != 1) refuse(group);

  const kernels::Image dx = read.at().image(group.writes[0]);
  if (pool.type == OpType::kGlobalAvgPoolBackward) {
    return [run = context.kernels.global_avg_pool_backward, diff = read.at().matrix(dy), dx, epilogue](Stream stream) {
      run(diff, dx, epilogue, stream);
    };
  }
  const kernels::Image diff = read.at().image(dy);
  const Window window = std::get<Window>(pool.attr);
  if (pool.type == OpType::kAvgPoolBackward) {
    return [run = context.kernels.avg_pool_backward, window, diff, dx, epilogue](Stream stream) {
      run(window, diff, dx, epilogue, stream);
    };
  }
  const auto* where = reinterpret_cast<const std::uint8_t*>(read.at().at(pool.inputs[0]));
  return [run = context.kernels.max_pool_backward, window, where, diff, dx, pooled, epilogue](Stream stream) {
    run(window, where, diff, dx, pooled, epilogue, stream);
  };
}

// ---- Sums, batch norms, losses ----

Launch statistics(const Reader& read, const Operation& operation, const OwnContext& context) {
  return
      [run = context.kernels.statistics, x = read.at().matrix(operation.inputs[0]),
       sum = read.floats(operation.outputs[0]), square_sum = read.floats(operation.outputs[1]),
       workspace = read.at().arenas().workspace.data()](Stream stream) { run(x, sum, square_sum, workspace, stream); };
}

Launch bias_gradient(const Reader& read, const Operation& operation, const OwnContext& context) {
  return [run = context.kernels.bias_gradient, dy = read.at().matrix(operation.inputs[0]),
          out = read.at().at(operation.outputs[0]), type = read.type(operation.outputs[0]),
          workspace = read.at().arenas().workspace.data()](Stream stream) { run(dy, out, type, workspace, stream); };
}

/// Fills all fields except the sums.
kernels::NormFinalize finalize_of(const Reader& read, const Operation& operation, const OwnContext& context) {
  const Shape& normed = context.graph.tensor(context.graph.node(operation.node).outputs[0]).shape;
  const auto& attr = std::get<BatchNormAttr>(operation.attr);
  return {.gamma = read.floats(operation.inputs[2]),
          .beta = read.floats(operation.inputs[3]),
          .running_mean = read.floats(operation.inputs[4]),
          .running_var = read.floats(operation.inputs[5]),
          .mean = read.floats(operation.outputs[0]),
          .inv_std = read.floats(operation.outputs[1]),
          .scale = read.at().at(operation.outputs[2]),
          .shift = read.at().at(operation.outputs[3]),
          .type = read.type(operation.outputs[2]),
          .channels = read.shape(operation.outputs[0])[0],
          .count = normed.count() / normed[normed.rank() - 1],
          .epsilon = static_cast<float>(attr.epsilon),
          .momentum = static_cast<float>(attr.momentum)};
}

Launch norm_finalize(const Reader& read, const Operation& operation, const OwnContext& context) {
  kernels::NormFinalize work = finalize_of(read, operation, context);
  work.sum = read.floats(operation.inputs[0]);
  work.square_sum = read.floats(operation.inputs[1]);
  return [run = context.kernels.norm_finalize, work](Stream stream) { run(work, stream); };
}

Launch norm_statistics(const Reader& read, const OwnContext& context) {
  return [run = context.kernels.norm_statistics, x = read.at().matrix(read.operations().front()->inputs[0]),
          work = finalize_of(read, *read.operations().back(), context),
          workspace = read.at().arenas().workspace.data()](Stream stream) { run(x, work, workspace, stream); };
}

// Returns `parts` as a matrix with one row per part.
kernels::Matrix parts_of(kernels::Matrix parts, const Shape& shape) {
  parts.rows = shape[0];
  parts.channels = parts.pitch = shape.count() / shape[0];
  return parts;
}

Launch partial_sum(const Reader& read, const Operation& operation, const OwnContext& context) {
  return [run = context.kernels.bias_gradient,
          parts = parts_of(read.at().matrix(operation.inputs[0]), read.shape(operation.inputs[0])),
          out = read.at().at(operation.outputs[0]), type = read.type(operation.outputs[0]),
          workspace = read.at().arenas().workspace.data()](Stream stream) { run(parts, out, type, workspace, stream); };
}

Launch columns(const Reader& read, const Operation& operation, const OwnContext& context) {
  const Shape& y = context.graph.tensor(context.graph.node(operation.node).outputs[0]).shape;
  return [run = context.kernels.columns, window = std::get<Window>(operation.attr),
          x = read.at().image(operation.inputs[0]),
          out = kernels::Image{.matrix = read.at().matrix(operation.outputs[0]), .n = y[0], .h = y[1], .w = y[2]}](
             Stream stream) { run(window, x, out, stream); };
}

// Runs "[drelu] dnorm_weights" or "[drelu] dnorm_apply". The drelu tests the output of the same batch norm.
Launch norm_backward(const Reader& read, const Group& group, const OwnContext& context) {
  const Operation& operation = *read.operations().back();
  kernels::NormBackward work;
  work.x = read.at().matrix(operation.inputs[0]);
  ValueId dy = operation.inputs[1];
  if (read.operations().size() > 1) {
    const Operation& rectifier = *read.operations().front();
    const Source test = read.source(rectifier.inputs[0]);
    if (test.norm.mean == nullptr || test.matrix.data != work.x.data) refuse(group);
    work.norm = test.norm;
    work.rectified = true;
    dy = rectifier.inputs[1];
  }
  work.dy = read.at().matrix(dy);
  if (operation.type == OpType::kNormBackwardApply) {
    work.a = read.floats(operation.inputs[2]);
    work.b = read.floats(operation.inputs[3]);
    work.c = read.floats(operation.inputs[4]);
    return [run = context.kernels.norm_backward_apply, work,
            dx = read.at().matrix(operation.outputs[0])](Stream stream) { run(work, dx, stream); };
  }
  work.norm.gamma = read.floats(operation.inputs[2]);
  work.norm.mean = read.floats(operation.inputs[3]);
  work.norm.inv_std = read.floats(operation.inputs[4]);
  work.dgamma = read.at().at(operation.outputs[0]);
  work.dbeta = read.at().at(operation.outputs[1]);
  work.gradient_type = read.type(operation.outputs[0]);
  work.a = read.floats(operation.outputs[2]);
  work.b = read.floats(operation.outputs[3]);
  work.c = read.floats(operation.outputs[4]);
  return [run = context.kernels.norm_backward_weights, work,
          workspace = read.at().arenas().workspace.data()](Stream stream) { run(work, workspace, stream); };
}

Launch loss(const Reader& read, const Operation& operation, const OwnContext& context) {
  return [run = context.kernels.softmax_cross_entropy, logits = read.at().matrix(operation.inputs[0]),
          labels = reinterpret_cast<const std::int32_t*>(read.at().at(operation.inputs[1])),
          rows = reinterpret_cast<float*>(read.at().arenas().workspace.data()),
          loss = read.floats(operation.outputs[0]), probabilities = read.floats(operation.outputs[1])](Stream stream) {
    run(logits, labels, rows, loss, probabilities, stream);
  };
}

Launch loss_backward(const Reader& read, const Operation& operation, const OwnContext& context) {
  return [run = context.kernels.softmax_cross_entropy_backward, probabilities = read.floats(operation.inputs[0]),
          labels = reinterpret_cast<const std::int32_t*>(read.at().at(operation.inputs[1])),
          weight = static_cast<float>(std::get<LossAttr>(operation.attr).weight * context.gradient_prescale),
          scale = &context.loss_scale->scale, dlogits = read.at().matrix(operation.outputs[0])](Stream stream) {
    run(probabilities, labels, weight, scale, dlogits, stream);
  };
}

}  // namespace

std::size_t own_workspace(const Program& program, const Group& group, const kernels::Table& kernels) {
  const bool statistics = group.operations.front().type == OpType::kStatistics;
  const Operation& operation = statistics ? group.operations.front() : group.operations.back();
  switch (operation.type) {
    case OpType::kStatistics:
    case OpType::kNormBackwardWeights: return kernels.row_sums_workspace(matrix_of(program, operation.inputs[0]), 2);
    case OpType::kBiasGradient: return kernels.row_sums_workspace(matrix_of(program, operation.inputs[0]), 1);
    case OpType::kPartialSum:
      return kernels.row_sums_workspace(
          parts_of(matrix_of(program, operation.inputs[0]), program.value(operation.inputs[0]).shape), 1);
    case OpType::kSoftmaxCrossEntropy:
      return static_cast<std::size_t>(matrix_of(program, operation.inputs[0]).rows) * sizeof(float);
    default: return 0;
  }
}

Launch own_launch(const Addresses& addresses, const Group& group, const OwnContext& context) {
  if (own_kernel(group).empty()) refuse(group);
  const Reader read(addresses, group);
  const Operation& first = *read.operations().front();
  switch (first.type) {
    case OpType::kCopy: return copies(read, context);
    case OpType::kMaxPool:
    case OpType::kAvgPool:
    case OpType::kGlobalAvgPool: return pool(read, first, context);
    case OpType::kStatistics:
      return read.operations().size() > 1 ? norm_statistics(read, context) : statistics(read, first, context);
    case OpType::kBiasGradient: return bias_gradient(read, first, context);
    case OpType::kPartialSum: return partial_sum(read, first, context);
    case OpType::kColumns: return columns(read, first, context);
    case OpType::kNormFinalize: return norm_finalize(read, first, context);
    case OpType::kSoftmaxCrossEntropy: return loss(read, first, context);
    case OpType::kSoftmaxCrossEntropyBackward: return loss_backward(read, first, context);
    default: break;
  }
  if (holds(group, {OpType::kMaxPoolBackward, OpType::kAvgPoolBackward, OpType::kGlobalAvgPoolBackward})) {
    return pool_backward(read, group, context);
  }
  if (holds(group, {OpType::kNormBackwardWeights, OpType::kNormBackwardApply})) {
    return norm_backward(read, group, context);
  }
  return pointwise(read, group, context);
}

}  // namespace hvd::models::cudnn
