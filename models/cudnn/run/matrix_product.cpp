#include "models/cudnn/run/matrix_product.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "engine/base/assert.h"

namespace hvd::models::cudnn {
namespace {

constexpr std::size_t kMaxAlgorithms = 8;

/// Describes value `id`, a row-major matrix of `rows` rows, as the column-major library sees the matrix: transposed.
/// Cuts the rows into `batch` parts.
Operand operand(const Addresses& at, ValueId id, std::int64_t rows, bool transposed = false, std::int64_t batch = 1) {
  const Value& value = at.program().value(id);
  HVD_ASSERT(value.parent == kNoValue && rows % batch == 0);
  return {.data = at.at(id),
          .type = value.type,
          .rows = value.shape.count() / rows,
          .columns = rows / batch,
          .transposed = transposed,
          .batch = batch};
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

constexpr auto kNoEpilogue = CUBLASLT_EPILOGUE_DEFAULT;

cublasLtEpilogue_t epilogue_of(const Product& product) {
  if (product.bias_gradient != nullptr) return CUBLASLT_EPILOGUE_BGRADB;
  if (product.bias != nullptr) return product.relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS;
  return product.relu ? CUBLASLT_EPILOGUE_RELU : kNoEpilogue;
}

/// The alignment that cuBLASLt may assume for `address`, at most the 256 bytes that the arenas guarantee.
std::uint32_t alignment_of(const void* address) {
  constexpr std::uintptr_t kMost = 256;
  return static_cast<std::uint32_t>(std::gcd(reinterpret_cast<std::uintptr_t>(address), kMost));
}

}  // namespace

Product product_of(const Addresses& at, const Group& group) {
  const Program& program = at.program();
  const Operation& first = group.operations.front();
  Product product;
  product.text = operations_text(group) + " " + program.value(first.inputs[0]).shape.text() + " by " +
                 program.value(first.inputs[1]).shape.text();
  const auto first_of = [&](ValueId id) { return program.value(id).shape[0]; };
  const ValueId written = first.type == OpType::kLinearBackwardWeights ? first.outputs[0] : group.writes.front();
  switch (first.type) {
    case OpType::kLinear: {  // inputs: x, w
      const std::int64_t rows = first_of(first.inputs[0]);
      product.a = operand(at, first.inputs[1], first_of(first.inputs[1]), true);
      product.b = operand(at, first.inputs[0], rows);
      product.d = operand(at, written, rows);
      break;
    }
    case OpType::kLinearBackwardData:  // inputs: w, dy
      product.a = operand(at, first.inputs[0], first_of(first.inputs[0]));
      product.b = operand(at, first.inputs[1], first_of(first.inputs[1]));
      product.d = operand(at, written, first_of(written));
      break;
    default: {  // inputs: x, dy; output: dw, or {p, dw}, one dw for each of p parts of the rows
      HVD_ASSERT(first.type == OpType::kLinearBackwardWeights);
      const std::int64_t rows = first_of(first.inputs[0]);
      const Shape& dw = program.value(written).shape;
      const std::int64_t batch = dw.rank() == 3 ? dw[0] : 1;
      product.a = operand(at, first.inputs[0], rows, false, batch);
      product.b = operand(at, first.inputs[1], rows, true, batch);
      product.d = operand(at, written, dw.rank() == 3 ? dw[0] * dw[1] : dw[0], false, batch);
      if (batch > 1) product.text += " in " + std::to_string(batch);
      break;
    }
  }
  for (const Operation& operation : group.operations) {
    switch (operation.type) {
      case OpType::kBias:
        product.bias = at.at(operation.inputs[1]);
        product.bias_type = program.value(operation.inputs[1]).type;
        break;
      case OpType::kRelu: product.relu = true; break;
      case OpType::kBiasGradient:
        product.bias_gradient = at.at(operation.outputs[0]);
        product.bias_type = program.value(operation.outputs[0]).type;
        break;
      default: HVD_ASSERT(&operation == &first);
    }
  }
  return product;
}

bool has_epilogue(const Product& product) { return epilogue_of(product) != kNoEpilogue; }

Product without_epilogue(Product product) {
  product.bias = product.bias_gradient = nullptr;
  product.relu = false;
  return product;
}

BoundProduct::BoundProduct(const CublasLt& library, cublasLtHandle_t handle, const Product& product,
                           ComputeType compute, std::span<std::byte> workspace)
    : library_(library),
      handle_(handle),
      product_(product),
      compute_(compute),
      workspace_(workspace.first(std::min(workspace.size(), kProductWorkspaceBytes))),
      description_(make_description(compute)),
      a_(make_layout(product.a)),
      b_(make_layout(product.b)),
      d_(make_layout(product.d)) {}

BoundProduct::Owner<cublasLtMatmulPreferenceOpaque_t> BoundProduct::make_preference() const {
  cublasLtMatmulPreference_t raw = nullptr;
  library_.check(library_.call().create_preference(&raw), "cublasLtMatmulPreferenceCreate");
  Owner<cublasLtMatmulPreferenceOpaque_t> preference(raw, library_.call().destroy_preference);
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
  return preference;
}

ProductAlgorithms BoundProduct::algorithms() const {
  const auto preference = make_preference();
  std::array<cublasLtMatmulHeuristicResult_t, kMaxAlgorithms> results{};
  int count = 0;
  const cublasStatus_t status =
      library_.call().get_algorithms(handle_, description_.get(), a_.get(), b_.get(), d_.get(), d_.get(),
                                     preference.get(), static_cast<int>(results.size()), results.data(), &count);
  ProductAlgorithms answer;
  if (status != CUBLAS_STATUS_SUCCESS) {
    answer.why = library_.call().get_status_string(status);
    return answer;
  }
  for (const auto& result : std::span(results).first(static_cast<std::size_t>(count))) {
    if (result.state != CUBLAS_STATUS_SUCCESS) {
      answer.why = library_.call().get_status_string(result.state);
    } else if (result.workspaceSize > workspace_.size()) {
      answer.why = "only with a workspace of " + std::to_string(result.workspaceSize) + " bytes";
    } else {
      answer.list.push_back(result.algo);
    }
  }
  if (answer.list.empty() && answer.why.empty()) answer.why = "its heuristics know none";
  return answer;
}

std::string BoundProduct::key() const {
  std::string text =
      product_.text + " epilogue " + std::to_string(epilogue_of(product_)) + " compute " + std::string(name(compute_));
  for (const Operand* operand : {&product_.a, &product_.b, &product_.d}) {
    text += " " + std::string(hvd::name(operand->type)) + "/" + std::to_string(alignment_of(operand->data));
  }
  return text;
}

void BoundProduct::run(const cublasLtMatmulAlgo_t& algorithm, kernels::Stream stream) const {
  constexpr float kOne = 1, kZero = 0;
  library_.check(library_.call().multiply(handle_, description_.get(), &kOne, product_.a.data, a_.get(),
                                          product_.b.data, b_.get(), &kZero, product_.d.data, d_.get(), product_.d.data,
                                          d_.get(), &algorithm, workspace_.data(), workspace_.size(), stream),
                 "cublasLtMatmul");
}

BoundProduct::Owner<cublasLtMatmulDescOpaque_t> BoundProduct::make_description(ComputeType compute) const {
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

BoundProduct::Owner<cublasLtMatrixLayoutOpaque_t> BoundProduct::make_layout(const Operand& operand) const {
  cublasLtMatrixLayout_t raw = nullptr;
  library_.check(
      library_.call().create_layout(&raw, cublas_type(operand.type), static_cast<std::uint64_t>(operand.rows),
                                    static_cast<std::uint64_t>(operand.columns), operand.rows),
      "cublasLtMatrixLayoutCreate");
  Owner<cublasLtMatrixLayoutOpaque_t> owner(raw, library_.call().destroy_layout);
  const auto set = [&](cublasLtMatrixLayoutAttribute_t name, const auto& value) {
    library_.check(library_.call().set_layout(raw, name, &value, sizeof value), "cublasLtMatrixLayoutSetAttribute");
  };
  if (operand.batch == 1) return owner;
  set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<std::int32_t>(operand.batch));
  set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, std::int64_t{operand.rows * operand.columns});
  return owner;
}

}  // namespace hvd::models::cudnn
