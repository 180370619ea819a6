// A fake cuDNN. Descriptors store their attributes. A plan computes its operation graph on the host in double and
// rounds each tensor to its type. As in cuDNN, a plan knows memory only by unique ids, dimensions and strides. A tensor
// that the executor binds wrongly therefore makes the results wrong.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <stdexcept>
#include <vector>

#include "tests/cudnn/kernels/elements.h"
#include "tests/cudnn/run/recorder.h"
#include "tests/models/reference/ops.h"

namespace hvd::models::cudnn::testing {
namespace {

using reference::In;
using reference::Out;
using Data = std::vector<double>;

struct Fake {
  cudnnBackendDescriptorType_t type{};
  std::map<int, std::vector<std::byte>> attributes;
  bool finalized = false;

  template <class T>
  [[nodiscard]] std::vector<T> all(cudnnBackendAttributeName_t name) const {
    const auto found = attributes.find(name);
    if (found == attributes.end()) return {};
    std::vector<T> values(found->second.size() / sizeof(T));
    std::memcpy(values.data(), found->second.data(), values.size() * sizeof(T));
    return values;
  }
  template <class T>
  [[nodiscard]] T one(cudnnBackendAttributeName_t name) const {
    const std::vector<T> values = all<T>(name);
    if (values.size() != 1) throw std::runtime_error("attribute " + std::to_string(name) + " is not one value");
    return values[0];
  }
  [[nodiscard]] const Fake& descriptor(cudnnBackendAttributeName_t name) const { return *one<Fake*>(name); }
};

std::size_t width(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR: return 8;
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR: return 1;
    default: return 4;  // enumerations and floats
  }
}

DataType data_type(cudnnDataType_t type) {
  switch (type) {
    case CUDNN_DATA_HALF: return DataType::kF16;
    case CUDNN_DATA_BFLOAT16: return DataType::kBF16;
    default: return DataType::kF32;
  }
}

/// A tensor descriptor with dimensions {n, c, h, w} and strides.
struct Tensor {
  std::int64_t uid = 0;
  DataType type = DataType::kF32;
  std::vector<std::int64_t> dims, strides;
  bool is_virtual = false;

  explicit Tensor(const Fake& descriptor)
      : uid(descriptor.one<std::int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID)),
        type(data_type(descriptor.one<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE))),
        dims(descriptor.all<std::int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS)),
        strides(descriptor.all<std::int64_t>(CUDNN_ATTR_TENSOR_STRIDES)),
        is_virtual(descriptor.attributes.contains(CUDNN_ATTR_TENSOR_IS_VIRTUAL)) {}

  [[nodiscard]] Shape shape() const { return {dims[0], dims[2], dims[3], dims[1]}; }
  [[nodiscard]] bool is_vector() const { return dims[0] == 1 && dims[2] == 1 && dims[3] == 1; }
  /// Returns the number of elements of memory from the first element to the last, including gaps.
  [[nodiscard]] std::int64_t span() const {
    std::int64_t last = 0;
    for (std::size_t i = 0; i < dims.size(); ++i) last += (dims[i] - 1) * strides[i];
    return last + 1;
  }
  template <class Visit>  // calls visit(index in {n, h, w, c} order, offset in elements)
  void for_each(const Visit& visit) const {
    std::size_t index = 0;
    for (std::int64_t n = 0; n < dims[0]; ++n) {
      for (std::int64_t h = 0; h < dims[2]; ++h) {
        for (std::int64_t w = 0; w < dims[3]; ++w) {
          for (std::int64_t c = 0; c < dims[1]; ++c) {
            visit(index++, n * strides[0] + c * strides[1] + h * strides[2] + w * strides[3]);
          }
        }
      }
    }
  }
};

// One execution of an operation graph.
class Execution {
 public:
  Execution(const Fake& graph, const Fake& pack) {
    for (Fake* operation : graph.all<Fake*>(CUDNN_ATTR_OPERATIONGRAPH_OPS)) operations_.push_back(operation);
    const auto uids = pack.all<std::int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    const auto pointers = pack.all<std::byte*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    if (uids.size() != pointers.size()) throw std::runtime_error("as many addresses as ids");
    for (std::size_t i = 0; i < uids.size(); ++i) memory_[uids[i]] = pointers[i];
    for (const Fake* operation : operations_) declare(*operation);
  }

  [[nodiscard]] const std::vector<Range>& reads() const { return reads_; }
  [[nodiscard]] const std::vector<Range>& writes() const { return writes_; }
  void run() {
    values_.clear();
    for (const Fake* operation : operations_) run(*operation);
  }

 private:
  static bool is_output(int name) {
    switch (name) {
      case CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y:
      case CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX:
      case CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW:
      case CUDNN_ATTR_OPERATION_POINTWISE_YDESC:
      case CUDNN_ATTR_OPERATION_POINTWISE_DXDESC:
      case CUDNN_ATTR_OPERATION_GENSTATS_SUMDESC:
      case CUDNN_ATTR_OPERATION_GENSTATS_SQSUMDESC:
      case CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_SCALE_DESC:
      case CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_BIAS_DESC:
      case CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_DY_SCALE_DESC:
      case CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_X_SCALE_DESC:
      case CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_BIAS: return true;
      default: return false;
    }
  }

  // Notes which memory the operation reads and writes. Attributes of eight bytes are descriptors.
  void declare(const Fake& operation) {
    for (const auto& [name, bytes] : operation.attributes) {
      if (bytes.size() != sizeof(void*)) continue;
      Fake* other = nullptr;
      std::memcpy(&other, bytes.data(), sizeof other);
      if (other->type != CUDNN_BACKEND_TENSOR_DESCRIPTOR) continue;
      const Tensor tensor(*other);
      if (tensor.is_virtual) continue;
      const Range range{memory_.at(tensor.uid), static_cast<std::size_t>(tensor.span()) * size_of(tensor.type)};
      (is_output(name) ? writes_ : reads_).push_back(range);
    }
  }

  Data load(const Fake& operation, cudnnBackendAttributeName_t name) {
    const Tensor tensor(operation.descriptor(name));
    if (tensor.is_virtual) return values_.at(tensor.uid);
    Data data(static_cast<std::size_t>(tensor.shape().count()));
    tensor.for_each(
        [&](std::size_t i, std::int64_t at) { data[i] = read_element(memory_.at(tensor.uid), tensor.type, at); });
    return data;
  }
  /// Returns an operand of a convolution. The operand is rounded if the convolution computes in tf32.
  Data operand(const Fake& convolution, cudnnBackendAttributeName_t name) {
    Data data = load(convolution, name);
    if (tf32_) std::transform(data.begin(), data.end(), data.begin(), rounded_to_tf32);
    return data;
  }
  void store(const Fake& operation, cudnnBackendAttributeName_t name, Data data) {
    const Tensor tensor(operation.descriptor(name));
    if (tensor.is_virtual) {
      for (double& value : data) value = rounded(tensor.type, value);
      values_[tensor.uid] = std::move(data);
      return;
    }
    tensor.for_each(
        [&](std::size_t i, std::int64_t at) { write_element(memory_.at(tensor.uid), tensor.type, at, data[i]); });
  }
  static Shape shape(const Fake& operation, cudnnBackendAttributeName_t name) {
    return Tensor(operation.descriptor(name)).shape();
  }

  static Window window(const Fake& convolution, const Shape& w) {
    const auto before = convolution.all<std::int64_t>(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS);
    const auto after = convolution.all<std::int64_t>(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS);
    const auto strides = convolution.all<std::int64_t>(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES);
    return {.kernel_h = static_cast<int>(w[1]),
            .kernel_w = static_cast<int>(w[2]),
            .stride_h = static_cast<int>(strides.at(0)),
            .stride_w = static_cast<int>(strides.at(1)),
            .pad_top = static_cast<int>(before.at(0)),
            .pad_bottom = static_cast<int>(after.at(0)),
            .pad_left = static_cast<int>(before.at(1)),
            .pad_right = static_cast<int>(after.at(1))};
  }

  void run(const Fake& operation) {
    switch (operation.type) {
      case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR: {
        const Shape w = shape(operation, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W);
        const Shape y = shape(operation, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y);
        const Data x = operand(operation, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X);
        const Data filter = operand(operation, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W);
        Data out(static_cast<std::size_t>(y.count()));
        reference::conv(window(operation.descriptor(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC), w),
                        {x, shape(operation, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X)}, {filter, w}, {}, {out, y});
        return store(operation, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, std::move(out));
      }
      case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR: {
        const Shape w = shape(operation, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W);
        const Shape x = shape(operation, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX);
        const Data filter = operand(operation, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W);
        const Data dy = operand(operation, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY);
        Data dx(static_cast<std::size_t>(x.count()));
        reference::conv_backward_data(
            window(operation.descriptor(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC), w), {filter, w},
            {dy, shape(operation, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY)}, {dx, x});
        return store(operation, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, std::move(dx));
      }
      case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR: {
        const Shape w = shape(operation, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW);
        const Data x = operand(operation, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X);
        const Data dy = operand(operation, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY);
        Data dw(static_cast<std::size_t>(w.count()));
        reference::conv_backward_weights(
            window(operation.descriptor(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC), w),
            {x, shape(operation, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X)},
            {dy, shape(operation, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY)}, {dw, w}, {});
        return store(operation, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW, std::move(dw));
      }
      case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR: return pointwise(operation);
      case CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR: return statistics(operation);
      case CUDNN_BACKEND_OPERATION_BN_BWD_WEIGHTS_DESCRIPTOR: return norm_sums(operation);
      default: throw std::runtime_error("an operation that the fake cuDNN does not know");
    }
  }

  void pointwise(const Fake& operation) {
    const auto mode = operation.descriptor(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR)
                          .one<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE);
    const Data x = load(operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
    Data y(x.size());
    if (mode == CUDNN_POINTWISE_RELU_BWD) {
      const Data dy = load(operation, CUDNN_ATTR_OPERATION_POINTWISE_DYDESC);
      for (std::size_t i = 0; i < y.size(); ++i) y[i] = x[i] > 0 ? dy[i] : 0;
      return store(operation, CUDNN_ATTR_OPERATION_POINTWISE_DXDESC, std::move(y));
    }
    Data b;
    if (mode != CUDNN_POINTWISE_RELU_FWD) b = load(operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
    for (std::size_t i = 0; i < y.size(); ++i) {
      const double other = b.empty() ? 0 : b[i % b.size()];  // channels vary fastest, so a vector repeats
      switch (mode) {
        case CUDNN_POINTWISE_ADD: y[i] = x[i] + other; break;
        case CUDNN_POINTWISE_SUB: y[i] = x[i] - other; break;
        case CUDNN_POINTWISE_MUL: y[i] = x[i] * other; break;
        case CUDNN_POINTWISE_RELU_FWD: y[i] = std::max(x[i], 0.0); break;
        default: throw std::runtime_error("a pointwise mode that the fake cuDNN does not know");
      }
    }
    store(operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, std::move(y));
  }

  void statistics(const Fake& operation) {
    const Data x = load(operation, CUDNN_ATTR_OPERATION_GENSTATS_XDESC);
    const auto c = static_cast<std::size_t>(shape(operation, CUDNN_ATTR_OPERATION_GENSTATS_XDESC)[3]);
    Data sum(c), square_sum(c);
    for (std::size_t i = 0; i < x.size(); ++i) {
      sum[i % c] += x[i];
      square_sum[i % c] += x[i] * x[i];
    }
    store(operation, CUDNN_ATTR_OPERATION_GENSTATS_SUMDESC, std::move(sum));
    store(operation, CUDNN_ATTR_OPERATION_GENSTATS_SQSUMDESC, std::move(square_sum));
  }

  // Makes the sums of a batch norm's backward, and the coefficients of dx = eq_dy_scale * dy + eq_x_scale * x +
  // eq_bias.
  void norm_sums(const Fake& operation) {
    const Data x = load(operation, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_X_DESC);
    const Data dy = load(operation, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DY_DESC);
    const Data gamma = load(operation, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_BN_SCALE_DESC);
    const Data mean = load(operation, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MEAN_DESC);
    const Data inv_std = load(operation, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_INVSTD_DESC);
    const std::size_t channels = gamma.size();
    const double count = static_cast<double>(x.size()) / static_cast<double>(channels);
    Data dgamma(channels), dbeta(channels), a(channels), b(channels), bias(channels);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::size_t c = i % channels;
      dbeta[c] += dy[i];
      dgamma[c] += dy[i] * (x[i] - mean[c]) * inv_std[c];
    }
    for (std::size_t c = 0; c < channels; ++c) {
      a[c] = gamma[c] * inv_std[c];
      b[c] = -a[c] * inv_std[c] * dgamma[c] / count;
      bias[c] = -b[c] * mean[c] - a[c] * dbeta[c] / count;
    }
    store(operation, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_SCALE_DESC, std::move(dgamma));
    store(operation, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_BIAS_DESC, std::move(dbeta));
    store(operation, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_DY_SCALE_DESC, std::move(a));
    store(operation, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_X_SCALE_DESC, std::move(b));
    store(operation, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_BIAS, std::move(bias));
  }

  std::vector<const Fake*> operations_;
  std::map<std::int64_t, std::byte*> memory_;  // by unique id
  std::map<std::int64_t, Data> values_;        // elements of virtual tensors, by unique id
  std::vector<Range> reads_, writes_;
  bool tf32_ = Recorder::current()->tf32;
};

// ---- The C functions ----

Fake* fake(cudnnBackendDescriptor_t descriptor) { return static_cast<Fake*>(descriptor); }
kernels::Stream& stream() {
  static thread_local kernels::Stream stream = nullptr;
  return stream;
}

/// A plan's engine and operation graph.
struct Planned {
  std::int64_t engine = 0;
  const Fake* graph = nullptr;
  [[nodiscard]] std::vector<int> operations() const {
    std::vector<int> types;
    for (const Fake* operation : graph->all<Fake*>(CUDNN_ATTR_OPERATIONGRAPH_OPS)) types.push_back(operation->type);
    return types;
  }
};
Planned planned(const Fake& plan) {
  const Fake& engine = plan.descriptor(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG).descriptor(CUDNN_ATTR_ENGINECFG_ENGINE);
  return {engine.one<std::int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX),
          &engine.descriptor(CUDNN_ATTR_ENGINE_OPERATION_GRAPH)};
}

std::size_t workspace_of(std::int64_t engine) {
  return engine == 2 ? Recorder::current()->second_workspace : static_cast<std::size_t>(1024 * engine);
}

cudnnStatus_t finalize(cudnnBackendDescriptor_t descriptor) {
  Fake& fake_descriptor = *fake(descriptor);
  if (fake_descriptor.finalized) return CUDNN_STATUS_BAD_PARAM;
  if (fake_descriptor.type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
    const Planned plan = planned(fake_descriptor);
    const Recorder& script = *Recorder::current();
    if (plan.engine == script.broken_engine) return CUDNN_STATUS_NOT_SUPPORTED;
    if (script.refuses_plan && script.refuses_plan(plan.engine, plan.operations())) return CUDNN_STATUS_NOT_SUPPORTED;
  }
  fake_descriptor.finalized = true;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t set(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                  cudnnBackendAttributeType_t type, std::int64_t count, const void* data) {
  Fake& fake_descriptor = *fake(descriptor);
  if (fake_descriptor.finalized) return CUDNN_STATUS_BAD_PARAM;
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    for (std::int64_t i = 0; i < count; ++i) {
      if (!static_cast<Fake* const*>(data)[i]->finalized) return CUDNN_STATUS_BAD_PARAM;
    }
  }
  const auto* bytes = static_cast<const std::byte*>(data);
  fake_descriptor.attributes[name].assign(bytes, bytes + static_cast<std::size_t>(count) * width(type));
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t get(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                  cudnnBackendAttributeType_t type, std::int64_t capacity, std::int64_t* count, void* data) {
  if (name != CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE || type != CUDNN_TYPE_INT64 || capacity != 1) {
    return CUDNN_STATUS_NOT_SUPPORTED;
  }
  const auto bytes = static_cast<std::int64_t>(workspace_of(planned(*fake(descriptor)).engine));
  std::memcpy(data, &bytes, sizeof bytes);
  if (count != nullptr) *count = 1;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t execute(cudnnHandle_t /*handle*/, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack) {
  if (!fake(plan)->finalized || !fake(pack)->finalized) return CUDNN_STATUS_BAD_PARAM;
  const Planned planned_engine = planned(*fake(plan));
  const std::vector<int> operations = planned_engine.operations();
  if (const auto& refuses = Recorder::current()->refuses_launch;
      refuses && refuses(planned_engine.engine, operations)) {
    return CUDNN_STATUS_EXECUTION_FAILED;
  }
  std::string what = "cudnn engine " + std::to_string(planned_engine.engine);
  for (const int operation : operations) what += " " + std::to_string(operation);
  const auto execution = std::make_shared<Execution>(*planned_engine.graph, *fake(pack));
  Call call{.what = std::move(what), .reads = execution->reads(), .writes = execution->writes()};
  // Writes the whole workspace that the engine asked for.
  const auto workspace = fake(pack)->one<std::byte*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
  call.writes.emplace_back(workspace, workspace_of(planned_engine.engine));
  Recorder::current()->launch(stream(), std::move(call), [execution] { execution->run(); });
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace

std::atomic<std::size_t>& fake_cudnn_objects() {
  static std::atomic<std::size_t> objects{0};
  return objects;
}

Functions fake_cudnn() {
  Functions table;
  table.get_version = [] { return std::size_t{91900}; };
  table.get_error_string = [](cudnnStatus_t status) {
    return status == CUDNN_STATUS_NOT_SUPPORTED      ? "NOT_SUPPORTED"
           : status == CUDNN_STATUS_EXECUTION_FAILED ? "EXECUTION_FAILED"
                                                     : "BAD_PARAM";
  };
  table.create_handle = [](cudnnHandle_t* handle) {
    *handle = reinterpret_cast<cudnnHandle_t>(new int(0));
    stream() = nullptr;
    return CUDNN_STATUS_SUCCESS;
  };
  table.destroy_handle = [](cudnnHandle_t handle) {
    delete reinterpret_cast<int*>(handle);
    return CUDNN_STATUS_SUCCESS;
  };
  table.set_stream = [](cudnnHandle_t /*handle*/, cudaStream_t to) {
    stream() = to;
    return CUDNN_STATUS_SUCCESS;
  };
  table.create = [](cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t* descriptor) {
    ++fake_cudnn_objects();
    *descriptor = new Fake{.type = type, .attributes = {}, .finalized = false};
    return CUDNN_STATUS_SUCCESS;
  };
  table.destroy = [](cudnnBackendDescriptor_t descriptor) {
    --fake_cudnn_objects();
    delete fake(descriptor);
    return CUDNN_STATUS_SUCCESS;
  };
  table.set = &set;
  table.get = &get;
  table.finalize = &finalize;
  table.execute = &execute;
  return table;
}

}  // namespace hvd::models::cudnn::testing
