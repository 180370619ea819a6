// Makes the launches of the groups of Provider::kCublasLt: matrix products with bias, ReLU or the bias gradient as
// epilogue. Addresses are bound once, when a launch is made.
//
// cuBLASLt is column-major and sees a row-major {rows, columns} matrix as {columns, rows}.
//   y {n, out} = x {n, f} w {out, f}^T      Y (out x n) = W^T X
//   dx {n, f} = dy {n, out} w               dX (f x n) = W dY
//   dw {out, f} = dy^T x                    dW (f x out) = X dY^T, and db = the sums over rows of dy
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "models/cudnn/run/matrix_product.h"
#include "models/cudnn/run/own_launch.h"

namespace hvd::models::cudnn {

/// Owns one handle for all products of a step, and knows the algorithms of each product. Only one thread may use the
/// object, with the GPU current on this thread.
class CublasLtLauncher {
 public:
  explicit CublasLtLauncher(std::shared_ptr<const CublasLt> library);
  CublasLtLauncher(const CublasLtLauncher&) = delete;
  CublasLtLauncher& operator=(const CublasLtLauncher&) = delete;
  ~CublasLtLauncher();

  /// Returns the launch of `group`. The launch uses the algorithm that choose() named, else the first algorithm of
  /// cuBLASLt's heuristics that try_out() has not removed. If no algorithm has the group's epilogue, our kernel
  /// computes the epilogue after the product. Errors: unsupported, naming the operation and its shape, if the library
  /// has no algorithm for the product itself. The launch owns its descriptors; this object must outlive the launch.
  [[nodiscard]] Launch launch(const Addresses& addresses, const Group& group, ComputeType compute,
                              const kernels::Table& kernels);
  /// Launches the product of `group`. Removes each algorithm that is refused and tries the next. Errors: see launch().
  void try_out(const Addresses& addresses, const Group& group, ComputeType compute, const kernels::Table& kernels,
               kernels::Stream stream);

  /// A way to run a product, to be timed.
  struct Candidate {
    std::string product;    ///< key of the product: the same for products of equal shape, type and alignment
    std::string algorithm;  ///< the argument for choose()
    Launch launch;
  };
  /// Returns all algorithms for `group` that were not refused so far, best first. Errors: those of launch().
  [[nodiscard]] std::vector<Candidate> candidates(const Addresses& addresses, const Group& group, ComputeType compute,
                                                  const kernels::Table& kernels);
  /// Makes launch() use `algorithm` for the product whose key has signature_hash() `product`, unless the library has
  /// refused this algorithm.
  void choose(std::uint64_t product, const std::string& algorithm);
  /// After this call, chosen_text() and notes() leave out each product until it is used again. Call this function when
  /// the plans that used these products may be discarded.
  void forget_uses();
  /// Text with the algorithms that launch() uses: "product algorithm; ...", with a hash for each product and each
  /// algorithm.
  [[nodiscard]] std::string chosen_text() const;

  /// Returns one line for each missing epilogue and each product with refused algorithms.
  [[nodiscard]] std::vector<std::string> notes() const;
  [[nodiscard]] const CublasLt& library() const noexcept { return *library_; }

  struct Algorithms {
    std::string text;                        ///< e.g. "linear+bias 64x2048 by 1000x2048"
    bool epilogue = false;                   ///< true if the product has an epilogue
    std::vector<cublasLtMatmulAlgo_t> list;  ///< not refused so far, best first
    std::size_t refused = 0;                 ///< number of algorithms that did not run
    std::string why;                         ///< reason for the last refusal
    bool used = true;                        ///< true if the product was used since forget_uses()
  };

 private:
  struct BoundGroup;
  BoundGroup bind(const Addresses& addresses, const Group& group, ComputeType compute, const kernels::Table& kernels);

  std::shared_ptr<const CublasLt> library_;
  cublasLtHandle_t handle_ = nullptr;
  std::map<std::string, Algorithms> algorithms_;  // by BoundProduct::key()
  std::map<std::uint64_t, std::string> winners_;  // by hash of the product: the algorithm that choose() named
};

}  // namespace hvd::models::cudnn
