// The groups of Provider::kCublasLt: matrix products with bias, ReLU or the bias gradient as epilogue, bound to
// addresses once.
//
// cuBLASLt is column-major: a row-major {rows, columns} matrix is its {columns, rows} one.
//   y {n, out} = x {n, f} w {out, f}^T      Y (out x n) = W^T X
//   dx {n, f} = dy {n, out} w               dX (f x n) = W dY
//   dw {out, f} = dy^T x                    dW (f x out) = X dY^T, and db = the sums over rows of dy
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "models/cudnn/linear_product.h"
#include "models/cudnn/own_launch.h"

namespace hvd::models::cudnn {

/// One handle for all products of a step, and what is known of the algorithms for each. The caller's GPU must be
/// current. One thread.
class LinearLibrary {
 public:
  explicit LinearLibrary(std::shared_ptr<const CublasLt> library);
  LinearLibrary(const LinearLibrary&) = delete;
  LinearLibrary& operator=(const LinearLibrary&) = delete;
  ~LinearLibrary();

  /// The launch of `group`, with the first algorithm of cuBLASLt's heuristics that try_out() has not found wanting, or
  /// the one that choose() named. Where none has the group's epilogue, that is done by a kernel of ours behind the
  /// product. Errors: unsupported, naming the operation and its shape, if the library has none for the product itself.
  /// The launch keeps its descriptors; this object must outlive it.
  [[nodiscard]] Launch launch(const Addresses& addresses, const Group& group, ComputeType compute,
                              const kernels::Table& kernels);
  /// Launches the product of `group`; where that is refused, with the next algorithm, and so on. Errors: as launch().
  void try_out(const Addresses& addresses, const Group& group, ComputeType compute, const kernels::Table& kernels,
               kernels::Stream stream);

  /// What runs a product, to be timed.
  struct Candidate {
    std::string product;    ///< names what is multiplied: equal for products of equal shape, type and alignment
    std::string algorithm;  ///< for choose()
    Launch launch;
  };
  /// All algorithms for `group` that are not known to be refused, best guess first. Errors: as launch().
  [[nodiscard]] std::vector<Candidate> candidates(const Addresses& addresses, const Group& group, ComputeType compute,
                                                  const kernels::Table& kernels);
  /// From now on launch() uses `algorithm` for the product with this hash (signature_hash() of its name), if that is
  /// among those that are left.
  void choose(std::uint64_t product, const std::string& algorithm);
  /// What was asked about so far may be of plans that are not used: it is left out of what follows, unless asked again.
  void forget_uses();
  /// What launch() uses, for the record: "product algorithm; ...", both hashed.
  [[nodiscard]] std::string chosen_text() const;

  /// What did not go as asked, a line each.
  [[nodiscard]] std::vector<std::string> notes() const;
  [[nodiscard]] const CublasLt& library() const noexcept { return *library_; }

  /// What is known of one product.
  struct Algorithms {
    std::string text;                        ///< "linear+bias 64x2048 by 1000x2048"
    bool epilogue = false;                   ///< it is more than a product
    std::vector<cublasLtMatmulAlgo_t> list;  ///< that are left, best first
    std::size_t refused = 0;                 ///< that turned out not to run
    std::string why;                         ///< what the library said last
    bool used = true;                        ///< since forget_uses()
  };

 private:
  struct Bound;
  Bound bind(const Addresses& addresses, const Group& group, ComputeType compute, const kernels::Table& kernels);

  std::shared_ptr<const CublasLt> library_;
  cublasLtHandle_t handle_ = nullptr;
  std::map<std::string, Algorithms> algorithms_;  // by product, with its types and alignments
  std::map<std::uint64_t, std::string> winners_;  // by hash of the product: what choose() said
};

}  // namespace hvd::models::cudnn
