// A fake cuBLASLt. It multiplies column-major matrices on the host and computes the epilogues that the executor uses.
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "tests/cudnn/kernels/elements.h"
#include "tests/cudnn/run/recorder.h"

namespace hvd::models::cudnn::testing {
namespace {

struct Layout {
  DataType type = DataType::kF32;
  std::int64_t rows = 0, columns = 0, ld = 0;
  std::int64_t batch = 1, stride = 0;  ///< number of products, and the distance between their matrices in elements
  [[nodiscard]] Range range(const void* data) const {
    const auto elements = static_cast<std::size_t>((batch - 1) * stride + (columns - 1) * ld + rows);
    return {static_cast<const std::byte*>(data), elements * size_of(type)};
  }
};
struct Description {
  cublasComputeType_t compute{};
  std::map<int, std::vector<std::byte>> attributes;
  template <class T>
  [[nodiscard]] T get(cublasLtMatmulDescAttributes_t name, T otherwise) const {
    const auto found = attributes.find(name);
    if (found != attributes.end()) std::memcpy(&otherwise, found->second.data(), sizeof otherwise);
    return otherwise;
  }
  [[nodiscard]] int epilogue() const { return get<int>(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DEFAULT); }
};

DataType data_type(cudaDataType_t type) {
  return type == CUDA_R_16F ? DataType::kF16 : type == CUDA_R_16BF ? DataType::kBF16 : DataType::kF32;
}

Layout& layout(cublasLtMatrixLayout_t handle) { return *reinterpret_cast<Layout*>(handle); }
Description& description(cublasLtMatmulDesc_t handle) { return *reinterpret_cast<Description*>(handle); }

/// A batch of matrix products op(A) op(B) with an epilogue.
struct Product {
  Description desc;
  Layout a, b, d;
  std::byte *a_data, *b_data, *d_data;

  [[nodiscard]] std::int64_t inner() const { return transposes_a() ? a.rows : a.columns; }
  [[nodiscard]] bool transposes_a() const { return transposes(CUBLASLT_MATMUL_DESC_TRANSA); }
  [[nodiscard]] bool transposes_b() const { return transposes(CUBLASLT_MATMUL_DESC_TRANSB); }
  [[nodiscard]] bool transposes(cublasLtMatmulDescAttributes_t name) const {
    return desc.get<cublasOperation_t>(name, CUBLAS_OP_N) == CUBLAS_OP_T;
  }
  [[nodiscard]] std::byte* bias() const { return desc.get<std::byte*>(CUBLASLT_MATMUL_DESC_BIAS_POINTER, nullptr); }
  [[nodiscard]] DataType bias_type() const {
    return data_type(desc.get<cudaDataType_t>(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_32F));
  }
  [[nodiscard]] bool fits() const {
    const std::int64_t m = transposes_a() ? a.columns : a.rows, n = transposes_b() ? b.rows : b.columns;
    return d.rows == m && d.columns == n && inner() == (transposes_b() ? b.columns : b.rows) && a.batch == d.batch &&
           b.batch == d.batch && (d.batch == 1 || desc.epilogue() == CUBLASLT_EPILOGUE_DEFAULT);
  }
  [[nodiscard]] double a_at(std::int64_t i, std::int64_t k) const {
    return read_element(a_data, a.type, transposes_a() ? k + i * a.ld : i + k * a.ld);
  }
  [[nodiscard]] double b_at(std::int64_t k, std::int64_t j) const {
    return read_element(b_data, b.type, transposes_b() ? j + k * b.ld : k + j * b.ld);
  }
  [[nodiscard]] double operand(double value) const {
    return desc.compute == CUBLAS_COMPUTE_32F_FAST_TF32 ? rounded_to_tf32(value) : value;
  }
  /// Computes all products of the batch.
  void run_all() const {
    Product product = *this;
    for (std::int64_t i = 0; i < d.batch; ++i) {
      product.run();
      product.a_data += static_cast<std::size_t>(a.stride) * size_of(a.type);
      product.b_data += static_cast<std::size_t>(b.stride) * size_of(b.type);
      product.d_data += static_cast<std::size_t>(d.stride) * size_of(d.type);
    }
  }
  void run() const {
    const int epilogue = desc.epilogue();
    const bool adds = (epilogue & CUBLASLT_EPILOGUE_BIAS) != 0;
    for (std::int64_t j = 0; j < d.columns; ++j) {
      for (std::int64_t i = 0; i < d.rows; ++i) {
        double sum = adds ? read_element(bias(), bias_type(), i) : 0;
        for (std::int64_t k = 0; k < inner(); ++k) {
          sum += operand(a_at(i, k)) * operand(b_at(k, j));
        }
        if ((epilogue & CUBLASLT_EPILOGUE_RELU) != 0) sum = std::max(sum, 0.0);
        write_element(d_data, d.type, i + j * d.ld, sum);
      }
      if (epilogue != CUBLASLT_EPILOGUE_BGRADB) continue;
      double sum = 0;
      for (std::int64_t k = 0; k < inner(); ++k) sum += b_at(k, j);
      write_element(bias(), bias_type(), j, sum);
    }
  }
};

cublasStatus_t multiply(cublasLtHandle_t /*handle*/, cublasLtMatmulDesc_t desc, const void* alpha, const void* a,
                        cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                        const void* beta, const void* /*c*/, cublasLtMatrixLayout_t /*c_layout*/, void* d,
                        cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                        std::size_t workspace_bytes, cudaStream_t stream) {
  if (*static_cast<const float*>(alpha) != 1 || *static_cast<const float*>(beta) != 0)
    return CUBLAS_STATUS_INVALID_VALUE;
  const auto bytes = [](const void* data) { return static_cast<std::byte*>(const_cast<void*>(data)); };
  const Product product{.desc = description(desc),
                        .a = layout(a_layout),
                        .b = layout(b_layout),
                        .d = layout(d_layout),
                        .a_data = bytes(a),
                        .b_data = bytes(b),
                        .d_data = bytes(d)};
  if (!product.fits()) return CUBLAS_STATUS_INVALID_VALUE;
  const auto index = static_cast<int>(algorithm->data[0]);
  const auto& refuses = Recorder::current()->refuses_product;
  if (refuses && refuses(index, product.desc.epilogue())) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (product.d.columns >= Recorder::current()->refused_rows) return CUBLAS_STATUS_NOT_SUPPORTED;
  Call call{
      .what = "cublaslt epilogue " + std::to_string(product.desc.epilogue()) + " algorithm " + std::to_string(index),
      .reads = {product.a.range(a), product.b.range(b)},
      .writes = {product.d.range(d), Range(bytes(workspace), workspace_bytes)}};
  if (product.bias() != nullptr) {
    const bool gradient = product.desc.epilogue() == CUBLASLT_EPILOGUE_BGRADB;
    const auto count = static_cast<std::size_t>(gradient ? product.d.columns : product.d.rows);
    (gradient ? call.writes : call.reads).emplace_back(product.bias(), count * size_of(product.bias_type()));
  }
  Recorder::current()->launch(stream, std::move(call), [product] { product.run_all(); });
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

LtFunctions fake_cublaslt() {
  LtFunctions table;
  table.get_version = [] { return std::size_t{130100}; };
  table.get_status_string = [](cublasStatus_t status) {
    return status == CUBLAS_STATUS_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED" : "CUBLAS_STATUS_INVALID_VALUE";
  };
  table.create = [](cublasLtHandle_t* handle) {
    *handle = reinterpret_cast<cublasLtHandle_t>(new int(0));
    return CUBLAS_STATUS_SUCCESS;
  };
  table.destroy = [](cublasLtHandle_t handle) {
    delete reinterpret_cast<int*>(handle);
    return CUBLAS_STATUS_SUCCESS;
  };
  table.create_product = [](cublasLtMatmulDesc_t* desc, cublasComputeType_t compute, cudaDataType_t /*scale*/) {
    *desc = reinterpret_cast<cublasLtMatmulDesc_t>(new Description{.compute = compute, .attributes = {}});
    return CUBLAS_STATUS_SUCCESS;
  };
  table.destroy_product = [](cublasLtMatmulDesc_t desc) {
    delete &description(desc);
    return CUBLAS_STATUS_SUCCESS;
  };
  table.set_product = [](cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t name, const void* data,
                         std::size_t bytes) {
    const auto* begin = static_cast<const std::byte*>(data);
    description(desc).attributes[name].assign(begin, begin + bytes);
    return CUBLAS_STATUS_SUCCESS;
  };
  table.create_layout = [](cublasLtMatrixLayout_t* made, cudaDataType type, std::uint64_t rows, std::uint64_t columns,
                           std::int64_t ld) {
    *made = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{.type = data_type(type),
                                                                .rows = static_cast<std::int64_t>(rows),
                                                                .columns = static_cast<std::int64_t>(columns),
                                                                .ld = ld});
    return CUBLAS_STATUS_SUCCESS;
  };
  table.destroy_layout = [](cublasLtMatrixLayout_t handle) {
    delete &layout(handle);
    return CUBLAS_STATUS_SUCCESS;
  };
  table.set_layout = [](cublasLtMatrixLayout_t handle, cublasLtMatrixLayoutAttribute_t name, const void* data,
                        std::size_t bytes) {
    if (name == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT && bytes == sizeof(std::int32_t)) {
      std::int32_t count = 0;
      std::memcpy(&count, data, bytes);
      layout(handle).batch = count;
    } else if (name == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET && bytes == sizeof layout(handle).stride) {
      std::memcpy(&layout(handle).stride, data, bytes);
    } else {
      return CUBLAS_STATUS_INVALID_VALUE;
    }
    return CUBLAS_STATUS_SUCCESS;
  };
  table.create_preference = [](cublasLtMatmulPreference_t* made) {
    *made = reinterpret_cast<cublasLtMatmulPreference_t>(new int(0));
    return CUBLAS_STATUS_SUCCESS;
  };
  table.destroy_preference = [](cublasLtMatmulPreference_t handle) {
    delete reinterpret_cast<int*>(handle);
    return CUBLAS_STATUS_SUCCESS;
  };
  table.set_preference = [](cublasLtMatmulPreference_t /*of*/, cublasLtMatmulPreferenceAttributes_t /*name*/,
                            const void* /*data*/, std::size_t /*bytes*/) { return CUBLAS_STATUS_SUCCESS; };
  table.get_algorithms = [](cublasLtHandle_t /*handle*/, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t /*a*/,
                            cublasLtMatrixLayout_t /*b*/, cublasLtMatrixLayout_t /*c*/, cublasLtMatrixLayout_t /*d*/,
                            cublasLtMatmulPreference_t /*preference*/, int wanted,
                            cublasLtMatmulHeuristicResult_t* results, int* count) {
    const Recorder& script = *Recorder::current();
    *count = 0;
    if (description(desc).epilogue() == script.refused_epilogue) return CUBLAS_STATUS_NOT_SUPPORTED;
    for (; *count < std::min(wanted, Recorder::kProducts); ++*count) {
      cublasLtMatmulHeuristicResult_t& result = results[*count];
      result.state = CUBLAS_STATUS_SUCCESS;
      result.algo.data[0] = static_cast<std::uint64_t>(*count);
      result.workspaceSize = *count == 0 ? script.product_workspace : 0;
    }
    return CUBLAS_STATUS_SUCCESS;
  };
  table.multiply = &multiply;
  return table;
}

}  // namespace hvd::models::cudnn::testing
