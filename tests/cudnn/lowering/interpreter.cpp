#include "tests/cudnn/lowering/interpreter.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/base/assert.h"

namespace hvd::models::cudnn::testing {

using reference::In;
using reference::Out;

Interpreter::Interpreter(const Graph& graph, const Program& program)
    : graph_(graph), program_(program), memory_(program.values.size()) {}

void Interpreter::set(TensorId tensor, std::span<const double> values) {
  for (std::size_t id = 0; id < program_.values.size(); ++id) {
    const Value& value = program_.values[id];
    if (value.tensor != tensor || value.storage == Storage::kScratch) continue;
    HVD_ASSERT(static_cast<std::int64_t>(values.size()) == value.shape.count());
    return write(static_cast<ValueId>(id), Data(values.begin(), values.end()));
  }
  HVD_ASSERT(!"no arena holds this tensor");
}

std::vector<double> Interpreter::get(TensorId tensor) const {
  for (std::size_t id = 0; id < program_.values.size(); ++id) {
    if (program_.values[id].tensor == tensor) return read(static_cast<ValueId>(id));
  }
  HVD_ASSERT(!"the program has no value for this tensor");
  return {};
}

Interpreter::Data Interpreter::read(ValueId id) const {
  const Placement place = placement(program_, id);
  const Data& root = memory_[static_cast<std::size_t>(place.root)];
  HVD_ASSERT(!root.empty());
  if (place.root == id) return root;
  const Shape& slice_shape = shape(id);
  const std::int64_t channels = slice_shape[slice_shape.rank() - 1];
  Data data(static_cast<std::size_t>(slice_shape.count()));
  for (std::int64_t i = 0; i < slice_shape.count(); ++i) {
    data[static_cast<std::size_t>(i)] =
        root[static_cast<std::size_t>(i / channels * place.channels + place.offset + i % channels)];
  }
  return data;
}

void Interpreter::write(ValueId id, Data data) {
  const Placement place = placement(program_, id);
  Data& root = memory_[static_cast<std::size_t>(place.root)];
  if (place.root == id) {
    root = std::move(data);
    return;
  }
  const bool zeroed = program_.value(place.root).storage != Storage::kScratch;
  root.resize(static_cast<std::size_t>(shape(place.root).count()), zeroed ? 0 : std::nan(""));
  const std::int64_t channels = shape(id)[shape(id).rank() - 1];
  for (std::size_t i = 0; i < data.size(); ++i) {
    const auto index = static_cast<std::int64_t>(i);
    root[static_cast<std::size_t>(index / channels * place.channels + place.offset + index % channels)] = data[i];
  }
}

void Interpreter::run(std::span<const std::int32_t> labels, std::uint64_t seed, std::span<const int> last_readers) {
  for (std::size_t i = 0; i < program_.groups.size(); ++i) {
    const Group& group = program_.groups[i];
    for (const Operation& operation : group.operations) run(operation, labels, seed);
    // A value that only its own group uses is erased after the group.
    for (const Operation& operation : group.operations) {
      for (const ValueId output : operation.outputs) {
        if (inside(group, output)) memory_[static_cast<std::size_t>(output)].clear();
      }
    }
    for (std::size_t id = 0; id < last_readers.size(); ++id) {
      if (last_readers[id] == static_cast<int>(i)) memory_[id].clear();
    }
  }
}

void Interpreter::run(const Operation& operation, std::span<const std::int32_t> labels, std::uint64_t seed) {
  if (run_product(operation) || run_columns(operation) || run_norm(operation) || run_pointwise(operation) ||
      run_pool(operation))
    return;
  const ValueId out = operation.outputs[0];
  const Data x = read(operation.inputs[0]);
  Data y(static_cast<std::size_t>(shape(out).count()));
  switch (operation.type) {
    case OpType::kDropout:
    case OpType::kDropoutBackward: {
      const auto& attr = std::get<DropoutAttr>(operation.attr);
      const Shape& out_shape = shape(out);
      std::vector<std::uint8_t> keep(y.size());
      dropout_mask(attr, {.seed = seed, .features = static_cast<std::uint64_t>(out_shape.count() / out_shape[0])},
                   keep);
      reference::dropout(keep, dropout_scale(attr), {x, out_shape}, {y, out_shape});
      return write(out, std::move(y));
    }
    case OpType::kSoftmaxCrossEntropy: {
      Data probabilities(x.size());
      const Shape& logits = shape(operation.inputs[0]);
      write(out, {reference::softmax_cross_entropy({x, logits}, labels, {probabilities, logits})});
      return write(operation.outputs[1], std::move(probabilities));
    }
    case OpType::kSoftmaxCrossEntropyBackward:
      reference::softmax_cross_entropy_backward(std::get<LossAttr>(operation.attr).weight, {x, shape(out)}, labels,
                                                {y, shape(out)});
      return write(out, std::move(y));
    default: HVD_ASSERT(!"an operation that the interpreter does not know");
  }
}

// Runs convolutions, matrix products and bias gradients.
bool Interpreter::run_product(const Operation& operation) {
  switch (operation.type) {
    case OpType::kConv:
    case OpType::kConvBackwardData:
    case OpType::kConvBackwardWeights:
    case OpType::kLinear:
    case OpType::kLinearBackwardData:
    case OpType::kLinearBackwardWeights:
    case OpType::kBiasGradient: break;
    default: return false;
  }
  const ValueId out = operation.outputs[0];
  const Data a = read(operation.inputs[0]);
  const In first{a, shape(operation.inputs[0])};
  Data y(static_cast<std::size_t>(shape(out).count()));
  const Out result{y, shape(out)};
  if (operation.type == OpType::kBiasGradient) {
    for (std::size_t i = 0; i < a.size(); ++i) y[i % y.size()] += a[i];
    write(out, std::move(y));
    return true;
  }
  const Data b = read(operation.inputs[1]);
  const In second{b, shape(operation.inputs[1])};
  const auto window = [&] { return std::get<Window>(operation.attr); };
  switch (operation.type) {
    case OpType::kConv: reference::conv(window(), first, second, {}, result); break;
    case OpType::kConvBackwardData: reference::conv_backward_data(window(), first, second, result); break;
    case OpType::kConvBackwardWeights: reference::conv_backward_weights(window(), first, second, result, {}); break;
    case OpType::kLinear: {  // the product of a convolution's columns has the shape of an image
      const Shape matrix{first.shape[0], second.shape[0]};
      const Data none(static_cast<std::size_t>(matrix[1]), 0.0);
      reference::fully_connected(first, second, {none, Shape{matrix[1]}}, {y, matrix});
      break;
    }
    case OpType::kLinearBackwardData: reference::fully_connected_backward_data(first, second, result); break;
    default: {
      const Shape& dw = shape(out);
      const bool in_parts = dw.rank() == 3;
      const std::int64_t parts = in_parts ? dw[0] : 1, rows = first.shape[0] / parts;
      const Shape part = in_parts ? Shape{dw[1], dw[2]} : dw;
      const auto part_of = [&](auto& data, std::int64_t part_elements, std::int64_t p) {
        return std::span(data).subspan(static_cast<std::size_t>(p * part_elements),
                                       static_cast<std::size_t>(part_elements));
      };
      for (std::int64_t p = 0; p < parts; ++p) {
        Data bias(static_cast<std::size_t>(part[0]));
        reference::fully_connected_backward_weights({part_of(a, rows * part[1], p), Shape{rows, part[1]}},
                                                    {part_of(b, rows * part[0], p), Shape{rows, part[0]}},
                                                    {part_of(y, part.count(), p), part}, {bias, Shape{part[0]}});
      }
      break;
    }
  }
  write(out, std::move(y));
  return true;
}

// Runs two operations: kColumns, which writes each window of a convolution as a row, and kPartialSum.
bool Interpreter::run_columns(const Operation& operation) {
  if (operation.type != OpType::kColumns && operation.type != OpType::kPartialSum) return false;
  const ValueId out = operation.outputs[0];
  const Data x = read(operation.inputs[0]);
  Data y(static_cast<std::size_t>(shape(out).count()), 0.0);
  if (operation.type == OpType::kPartialSum) {
    for (std::size_t i = 0; i < x.size(); ++i) y[i % y.size()] += x[i];
    write(out, std::move(y));
    return true;
  }
  const auto& window = std::get<Window>(operation.attr);
  const Shape& image = shape(operation.inputs[0]);
  const Shape& made = graph_.tensor(graph_.node(operation.node).outputs[0]).shape;
  const std::int64_t taps = shape(out)[1];
  for (std::int64_t row = 0; row < shape(out)[0]; ++row) {
    const std::int64_t n = row / (made[1] * made[2]), oh = row / made[2] % made[1], ow = row % made[2];
    for (std::int64_t tap = 0; tap < window.kernel_h * window.kernel_w * image[3]; ++tap) {
      const std::int64_t h = oh * window.stride_h - window.pad_top + tap / image[3] / window.kernel_w;
      const std::int64_t w = ow * window.stride_w - window.pad_left + tap / image[3] % window.kernel_w;
      if (h < 0 || w < 0 || h >= image[1] || w >= image[2]) continue;
      y[static_cast<std::size_t>(row * taps + tap)] =
          x[static_cast<std::size_t>(((n * image[1] + h) * image[2] + w) * image[3] + tap % image[3])];
    }
  }
  write(out, std::move(y));
  return true;
}

// Runs the operations of a batch norm. Formulas: Ioffe and Szegedy, arXiv:1502.03167. For each channel, with
// m = elements per channel, g = gamma, s = inv_std:  dx = a * dy + b * x + c  with
//   a = g s,  b = -g s^2 dgamma / m,  c = g s^2 mean dgamma / m - g s dbeta / m.
bool Interpreter::run_norm(const Operation& operation) {
  const auto in = [&](std::size_t i) { return read(operation.inputs[i]); };
  const auto channels_of = [&](ValueId id) { return static_cast<std::size_t>(shape(id)[shape(id).rank() - 1]); };
  switch (operation.type) {
    case OpType::kStatistics: {
      const Data x = in(0);
      Data sum(channels_of(operation.inputs[0])), square_sum(sum.size());
      for (std::size_t i = 0; i < x.size(); ++i) {
        sum[i % sum.size()] += x[i];
        square_sum[i % sum.size()] += x[i] * x[i];
      }
      write(operation.outputs[0], std::move(sum));
      write(operation.outputs[1], std::move(square_sum));
      return true;
    }
    case OpType::kNormFinalize: {
      const auto& attr = std::get<BatchNormAttr>(operation.attr);
      const Node& node = graph_.node(operation.node);
      const Data sum = in(0), square_sum = in(1), gamma = in(2), beta = in(3);
      Data running_mean = in(4), running_var = in(5);
      const auto m =
          static_cast<double>(graph_.tensor(node.outputs[0]).shape.count()) / static_cast<double>(sum.size());
      Data mean(sum.size()), inv_std(sum.size()), scale(sum.size()), shift(sum.size());
      for (std::size_t c = 0; c < sum.size(); ++c) {
        mean[c] = sum[c] / m;
        const double variance = square_sum[c] / m - mean[c] * mean[c];
        inv_std[c] = 1 / std::sqrt(variance + attr.epsilon);
        scale[c] = gamma[c] * inv_std[c];
        shift[c] = beta[c] - mean[c] * scale[c];
        running_mean[c] += attr.momentum * (mean[c] - running_mean[c]);
        running_var[c] += attr.momentum * (variance * m / std::max(m - 1, 1.0) - running_var[c]);
      }
      write(operation.inputs[4], std::move(running_mean));
      write(operation.inputs[5], std::move(running_var));
      write(operation.outputs[0], std::move(mean));
      write(operation.outputs[1], std::move(inv_std));
      write(operation.outputs[2], std::move(scale));
      write(operation.outputs[3], std::move(shift));
      return true;
    }
    case OpType::kNormApply: {
      Data x = in(0);
      const Data mean = in(1), inv_std = in(2), gamma = in(3), beta = in(4);
      for (std::size_t i = 0; i < x.size(); ++i) {
        const std::size_t c = i % mean.size();
        x[i] = (x[i] - mean[c]) * inv_std[c] * gamma[c] + beta[c];
      }
      write(operation.outputs[0], std::move(x));
      return true;
    }
    case OpType::kNormBackwardWeights: {
      const Data x = in(0), dy = in(1), gamma = in(2), mean = in(3), inv_std = in(4);
      const std::size_t channels = gamma.size();
      const auto m = static_cast<double>(x.size()) / static_cast<double>(channels);
      Data dgamma(channels), dbeta(channels), a(channels), b(channels), c(channels);
      for (std::size_t i = 0; i < x.size(); ++i) {
        dbeta[i % channels] += dy[i];
        dgamma[i % channels] += dy[i] * (x[i] - mean[i % channels]) * inv_std[i % channels];
      }
      for (std::size_t k = 0; k < channels; ++k) {
        a[k] = gamma[k] * inv_std[k];
        b[k] = -a[k] * inv_std[k] * dgamma[k] / m;
        c[k] = -b[k] * mean[k] - a[k] * dbeta[k] / m;
      }
      write(operation.outputs[0], std::move(dgamma));
      write(operation.outputs[1], std::move(dbeta));
      write(operation.outputs[2], std::move(a));
      write(operation.outputs[3], std::move(b));
      write(operation.outputs[4], std::move(c));
      return true;
    }
    case OpType::kNormBackwardApply: {
      Data x = in(0);
      const Data dy = in(1), a = in(2), b = in(3), c = in(4);
      for (std::size_t i = 0; i < x.size(); ++i) {
        const std::size_t k = i % a.size();
        x[i] = a[k] * dy[i] + b[k] * x[i] + c[k];
      }
      write(operation.outputs[0], std::move(x));
      return true;
    }
    default: return false;
  }
}

bool Interpreter::run_pointwise(const Operation& operation) {
  Data y;
  switch (operation.type) {
    case OpType::kBias: {
      y = read(operation.inputs[0]);
      const Data bias = read(operation.inputs[1]);
      for (std::size_t i = 0; i < y.size(); ++i) y[i] += bias[i % bias.size()];
      break;
    }
    case OpType::kAdd:
      y = read(operation.inputs[0]);
      for (std::size_t part = 1; part < operation.inputs.size(); ++part) {
        const Data other = read(operation.inputs[part]);
        for (std::size_t i = 0; i < y.size(); ++i) y[i] += other[i];
      }
      break;
    case OpType::kRelu:
      y = read(operation.inputs[0]);
      for (double& v : y) v = v > 0 ? v : 0;
      break;
    case OpType::kReluBackward: {
      const Data test = read(operation.inputs[0]);
      y = read(operation.inputs[1]);
      for (std::size_t i = 0; i < y.size(); ++i) y[i] = test[i] > 0 ? y[i] : 0;
      break;
    }
    case OpType::kCopy: y = read(operation.inputs[0]); break;
    default: return false;
  }
  write(operation.outputs[0], std::move(y));
  return true;
}

bool Interpreter::run_pool(const Operation& operation) {
  const ValueId out = operation.outputs[0];
  Data y(static_cast<std::size_t>(shape(out).count()));
  const Data x = read(operation.inputs[0]);
  const In first{x, shape(operation.inputs[0])};
  const Out result{y, shape(out)};
  const auto window = [&] { return std::get<Window>(operation.attr); };
  switch (operation.type) {
    case OpType::kAvgPool: reference::avg_pool(window(), first, result); break;
    case OpType::kAvgPoolBackward: reference::avg_pool_backward(window(), first, result); break;
    case OpType::kGlobalAvgPool: reference::global_avg_pool(first, result); break;
    case OpType::kGlobalAvgPoolBackward: reference::global_avg_pool_backward(first, result); break;
    case OpType::kMaxPool:
    case OpType::kMaxPoolBackward: {
      // `where` stores for each window the index of its first maximum. A window is read row by row.
      const Window w = window();
      const bool backward = operation.type == OpType::kMaxPoolBackward;
      const Data dy = backward ? read(operation.inputs[1]) : Data();
      const Shape& pooled = backward ? shape(operation.inputs[0]) : shape(out);
      const Shape& image = backward ? shape(out) : shape(operation.inputs[0]);
      Data where(static_cast<std::size_t>(pooled.count()));
      for (std::int64_t o = 0; o < pooled.count(); ++o) {
        const std::int64_t c = o % pooled[3], ow = o / pooled[3] % pooled[2];
        const std::int64_t oh = o / pooled[3] / pooled[2] % pooled[1], n = o / pooled[3] / pooled[2] / pooled[1];
        const auto at = [&](std::int64_t index) {  // the element at place `index` of the window; -1: padding
          const std::int64_t h = oh * w.stride_h - w.pad_top + index / w.kernel_w;
          const std::int64_t v = ow * w.stride_w - w.pad_left + index % w.kernel_w;
          if (h < 0 || v < 0 || h >= image[1] || v >= image[2]) return std::int64_t{-1};
          return ((n * image[1] + h) * image[2] + v) * image[3] + c;
        };
        const auto element = static_cast<std::size_t>(o);
        if (backward) {
          y[static_cast<std::size_t>(at(static_cast<std::int64_t>(x[element])))] += dy[element];
          continue;
        }
        std::int64_t best = -1;
        for (std::int64_t tap = 0; tap < std::int64_t{w.kernel_h} * w.kernel_w; ++tap) {
          if (at(tap) < 0) continue;
          if (best < 0 || x[static_cast<std::size_t>(at(tap))] > x[static_cast<std::size_t>(at(best))]) best = tap;
        }
        where[element] = static_cast<double>(best);
        y[element] = x[static_cast<std::size_t>(at(best))];
      }
      if (!backward) write(operation.outputs[1], std::move(where));
      break;
    }
    default: return false;
  }
  write(out, std::move(y));
  return true;
}

}  // namespace hvd::models::cudnn::testing
