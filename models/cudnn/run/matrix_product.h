// One matrix product of cuBLASLt, bound to addresses: its description, the algorithms that the library's heuristics
// name for the product, and the call. cublaslt_launcher.h chooses the algorithm. One thread uses the object, with the
// GPU current on this thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "models/cudnn/library/cublaslt.h"
#include "models/cudnn/lowering/lowering.h"
#include "models/cudnn/plan/memory_layout.h"

namespace hvd::models::cudnn {

struct Operand {
  void* data = nullptr;
  DataType type = DataType::kF32;
  std::int64_t rows = 0, columns = 0;  ///< column-major, leading dimension = rows
  bool transposed = false;
  std::int64_t batch = 1;  ///< number of consecutive matrices, each of rows * columns elements
};

/// The product and epilogue that a group computes.
struct Product {
  Operand a, b, d;
  void* bias = nullptr;           ///< added to every column of d
  void* bias_gradient = nullptr;  ///< receives the sums over the rows of b's row-major matrix
  DataType bias_type = DataType::kF32;
  bool relu = false;
  std::string text;  ///< e.g. "linear+bias 64x2048 by 1000x2048"; a batch adds " in " and the number of matrices
};

/// Describes a group of Provider::kCublasLt at its addresses.
Product product_of(const Addresses& at, const Group& group);
/// True if the product has a bias, a ReLU or a bias gradient.
bool has_epilogue(const Product& product);
Product without_epilogue(Product product);

/// The answer of the library's heuristics for a product.
struct ProductAlgorithms {
  std::vector<cublasLtMatmulAlgo_t> list = {};  ///< algorithms that fit in the workspace, best first
  std::string why = {};  ///< why an algorithm was left out (the last one), or why the list is empty
};

/// A product that is ready to run with a given algorithm.
class BoundProduct {
 public:
  /// `library` and the context of `handle` must outlive this object. Errors: backend.
  BoundProduct(const CublasLt& library, cublasLtHandle_t handle, const Product& product, ComputeType compute,
               std::span<std::byte> workspace);

  [[nodiscard]] ProductAlgorithms algorithms() const;
  /// Products with equal keys have equal shapes, types and alignments, so the same algorithms run them.
  [[nodiscard]] std::string key() const;
  /// Errors: backend, if the library refuses the product.
  void run(const cublasLtMatmulAlgo_t& algorithm, kernels::Stream stream) const;

 private:
  template <class Opaque>
  using Owner = std::unique_ptr<Opaque, cublasStatus_t(CUBLASWINAPI*)(Opaque*)>;

  [[nodiscard]] Owner<cublasLtMatmulDescOpaque_t> make_description(ComputeType compute) const;
  [[nodiscard]] Owner<cublasLtMatrixLayoutOpaque_t> make_layout(const Operand& operand) const;
  [[nodiscard]] Owner<cublasLtMatmulPreferenceOpaque_t> make_preference() const;

  const CublasLt& library_;
  cublasLtHandle_t handle_;
  Product product_;
  ComputeType compute_;
  std::span<std::byte> workspace_;
  Owner<cublasLtMatmulDescOpaque_t> description_;
  Owner<cublasLtMatrixLayoutOpaque_t> a_, b_, d_;
};

/// Bytes of workspace offered to cuBLASLt. Source: its documentation recommends 32 MiB for Hopper.
inline constexpr std::size_t kProductWorkspaceBytes = std::size_t{32} << 20;

}  // namespace hvd::models::cudnn
