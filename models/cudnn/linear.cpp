#include "models/cudnn/linear.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <utility>

#include "engine/base/assert.h"
#include "engine/base/error.h"

namespace hvd::models::cudnn {
namespace {

using kernels::Stream;

template <class Opaque>
using Owner = std::unique_ptr<Opaque, cublasStatus_t(CUBLASWINAPI*)(Opaque*)>;

struct Operand {
  void* data = nullptr;
  DataType type = DataType::kF32;
  std::int64_t rows = 0, columns = 0;  ///< column-major, leading dimension = rows
  bool transposed = false;
};

/// What a group asks for.
struct Product {
  Operand a, b, d;
  void* bias = nullptr;           ///< added to every column of d
  void* bias_gradient = nullptr;  ///< sums over the rows of b's row-major matrix
  DataType bias_type = DataType::kF32;
  bool relu = false;
  std::string text;  ///< "linear+bias 64x2048 by 1000x2048"
};

std::int64_t columns_of(const Shape& shape) { return shape.count() / shape[0]; }

Operand operand(const Addresses& at, ValueId id, bool transposed = false) {
  const Value& value = at.program().value(id);
  HVD_ASSERT(value.parent == kNoValue);
  return {.data = at.at(id),
          .type = value.type,
          .rows = columns_of(value.shape),
          .columns = value.shape[0],
          .transposed = transposed};
}

Product product_of(const Addresses& at, const Group& group) {
  const Program& program = at.program();
  const Operation& first = group.operations.front();
  Product product;
  product.text = operations_text(group) + " " + program.value(first.inputs[0]).shape.text() + " by " +
                 program.value(first.inputs[1]).shape.text();
  switch (first.type) {
    case OpType::kLinear:  // x, w
      product.a = operand(at, first.inputs[1], true);
      product.b = operand(at, first.inputs[0]);
      break;
    case OpType::kLinearBackwardData:  // w, dy
      product.a = operand(at, first.inputs[0]);
      product.b = operand(at, first.inputs[1]);
      break;
    default:  // x, dy
      HVD_ASSERT(first.type == OpType::kLinearBackwardWeights);
      product.a = operand(at, first.inputs[0]);
      product.b = operand(at, first.inputs[1], true);
      break;
  }
  for (const Operation& of : group.operations) {
    switch (of.type) {
      case OpType::kBias:
        product.bias = at.at(of.inputs[1]);
        product.bias_type = program.value(of.inputs[1]).type;
        break;
      case OpType::kRelu: product.relu = true; break;
      case OpType::kBiasGradient:
        product.bias_gradient = at.at(of.outputs[0]);
        product.bias_type = program.value(of.outputs[0]).type;
        break;
      default: HVD_ASSERT(&of == &first);
    }
  }
  const bool gradient = first.type == OpType::kLinearBackwardWeights;
  product.d = operand(at, gradient ? first.outputs[0] : group.writes.front());
  return product;
}

cudaDataType_t cublas_type(DataType type) {
  switch (type) {
    case DataType::kF16: return CUDA_R_16F;
    case DataType::kBF16: return CUDA_R_16BF;
    default: break;
  }
  HVD_ASSERT(type == DataType::kF32);
  return CUDA_R_32F;
}

cublasLtEpilogue_t epilogue_of(const Product& product) {
  if (product.bias_gradient != nullptr) return CUBLASLT_EPILOGUE_BGRADB;
  if (product.bias != nullptr) return product.relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS;
  return product.relu ? CUBLASLT_EPILOGUE_RELU : CUBLASLT_EPILOGUE_DEFAULT;
}

/// The arenas give at least this; what cuBLASLt may assume of an address.
std::uint32_t alignment_of(const void* address) {
  constexpr std::uintptr_t kMost = 256;
  return static_cast<std::uint32_t>(std::gcd(reinterpret_cast<std::uintptr_t>(address), kMost));
}

/// A product with its algorithm, ready to run.
class Prepared {
 public:
  Prepared(const CublasLt& library, cublasLtHandle_t handle, const Product& product, ComputeType compute,
           std::span<std::byte> workspace)
      : library_(library),
        handle_(handle),
        product_(product),
        workspace_(workspace.first(std::min(workspace.size(), kLinearWorkspaceBytes))),
        description_(make_description(compute)),
        a_(make_layout(product.a)),
        b_(make_layout(product.b)),
        d_(make_layout(product.d)) {}

  /// Asks for an algorithm. Whether there is one.
  bool choose() {
    cublasLtMatmulPreference_t raw = nullptr;
    library_.check(library_.call().create_preference(&raw), "cublasLtMatmulPreferenceCreate");
    const Owner<cublasLtMatmulPreferenceOpaque_t> preference(raw, library_.call().destroy_preference);
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t name, const auto& value) {
      library_.check(library_.call().set_preference(raw, name, &value, sizeof value),
                     "cublasLtMatmulPreferenceSetAttribute");
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{workspace_.size()});
    // Parts of a split sum are added in fp32, never in 16 bits.
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(product_.a.data));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(product_.b.data));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(product_.d.data));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(product_.d.data));
    cublasLtMatmulHeuristicResult_t result{};
    int count = 0;
    const cublasStatus_t status = library_.call().get_algorithms(handle_, description_.get(), a_.get(), b_.get(),
                                                                 d_.get(), d_.get(), raw, 1, &result, &count);
    if (status != CUBLAS_STATUS_SUCCESS || count == 0 || result.state != CUBLAS_STATUS_SUCCESS) return false;
    algorithm_ = result.algo;
    return true;
  }

  void run(Stream stream) const {
    constexpr float kOne = 1, kZero = 0;
    library_.check(
        library_.call().multiply(handle_, description_.get(), &kOne, product_.a.data, a_.get(), product_.b.data,
                                 b_.get(), &kZero, product_.d.data, d_.get(), product_.d.data, d_.get(), &algorithm_,
                                 workspace_.data(), workspace_.size(), stream),
        "cublasLtMatmul");
  }

 private:
  Owner<cublasLtMatmulDescOpaque_t> make_description(ComputeType compute) {
    cublasLtMatmulDesc_t raw = nullptr;
    const auto type = compute == ComputeType::kTf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    library_.check(library_.call().create_product(&raw, type, CUDA_R_32F), "cublasLtMatmulDescCreate");
    Owner<cublasLtMatmulDescOpaque_t> owner(raw, library_.call().destroy_product);
    const auto set = [&](cublasLtMatmulDescAttributes_t name, const auto& value) {
      library_.check(library_.call().set_product(raw, name, &value, sizeof value), "cublasLtMatmulDescSetAttribute");
    };
    set(CUBLASLT_MATMUL_DESC_TRANSA, product_.a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, product_.b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(product_));
    void* bias = product_.bias != nullptr ? product_.bias : product_.bias_gradient;
    if (bias == nullptr) return owner;
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, cublas_type(product_.bias_type));
    return owner;
  }
  Owner<cublasLtMatrixLayoutOpaque_t> make_layout(const Operand& of) {
    cublasLtMatrixLayout_t raw = nullptr;
    library_.check(library_.call().create_layout(&raw, cublas_type(of.type), static_cast<std::uint64_t>(of.rows),
                                                 static_cast<std::uint64_t>(of.columns), of.rows),
                   "cublasLtMatrixLayoutCreate");
    return {raw, library_.call().destroy_layout};
  }

  const CublasLt& library_;
  cublasLtHandle_t handle_;
  Product product_;
  std::span<std::byte> workspace_;
  Owner<cublasLtMatmulDescOpaque_t> description_;
  Owner<cublasLtMatrixLayoutOpaque_t> a_, b_, d_;
  cublasLtMatmulAlgo_t algorithm_{};
};

// What the product's epilogue would have done, by kernels of ours.
Launch epilogue_launch(const Addresses& at, const Group& group, const Product& product, const kernels::Table& kernels) {
  if (product.bias_gradient != nullptr) {
    const Operation& of = group.operations.back();
    return [run = kernels.bias_gradient, dy = at.matrix(of.inputs[0]), out = product.bias_gradient,
            type = product.bias_type,
            workspace = at.arenas().workspace.data()](Stream stream) { run(dy, out, type, workspace, stream); };
  }
  kernels::Pointwise work;
  work.out = at.matrix(group.writes.front());
  work.input[0] = work.out;  // in place
  work.bias = product.bias;
  work.relu = product.relu;
  return [run = kernels.pointwise, work](Stream stream) { run(work, stream); };
}

}  // namespace

LinearLibrary::LinearLibrary(std::shared_ptr<const CublasLt> library) : library_(std::move(library)) {
  library_->check(library_->call().create(&handle_), "cublasLtCreate");
}

LinearLibrary::~LinearLibrary() { static_cast<void>(library_->call().destroy(handle_)); }

Launch LinearLibrary::launch(const Addresses& addresses, const Group& group, ComputeType compute,
                             const kernels::Table& kernels, std::vector<std::string>& notes) const {
  const Product whole = product_of(addresses, group);
  const auto prepare = [&](const Product& product) {
    return std::make_shared<Prepared>(*library_, handle_, product, compute, addresses.arenas().workspace);
  };
  const auto fused = prepare(whole);
  if (fused->choose()) return [fused](Stream stream) { fused->run(stream); };
  Product alone = whole;
  alone.bias = alone.bias_gradient = nullptr;
  alone.relu = false;
  const auto plain = prepare(alone);
  if (epilogue_of(whole) == CUBLASLT_EPILOGUE_DEFAULT || !plain->choose()) {
    throw Error(Errc::kUnsupported, "cuBLASLt " + library_->version() + " has no algorithm for " + whole.text + " in " +
                                        std::string(name(compute)) + "; try another --dtype");
  }
  notes.push_back("cuBLASLt has no epilogue for " + whole.text + ": a kernel of ours follows");
  const auto after = std::make_shared<const Launch>(epilogue_launch(addresses, group, whole, kernels));
  return [plain, after](Stream stream) {
    plain->run(stream);
    (*after)(stream);
  };
}

}  // namespace hvd::models::cudnn
