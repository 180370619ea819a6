// The groups of Engine::kCublasLt: matrix products with bias, ReLU or the bias gradient as epilogue, bound to addresses
// once.
//
// cuBLASLt is column-major: a row-major {rows, columns} matrix is its {columns, rows} one.
//   y {n, out} = x {n, f} w {out, f}^T      Y (out x n) = W^T X
//   dx {n, f} = dy {n, out} w               dX (f x n) = W dY
//   dw {out, f} = dy^T x                    dW (f x out) = X dY^T, and db = the sums over rows of dy
#pragma once

#include <memory>
#include <string>

#include "models/cudnn/addresses.h"
#include "models/cudnn/cublaslt.h"
#include "models/cudnn/own_launch.h"

namespace hvd::models::cudnn {

/// One handle for all products of a step. The caller's GPU must be current.
class LinearLibrary {
 public:
  explicit LinearLibrary(std::shared_ptr<const CublasLt> library);
  LinearLibrary(const LinearLibrary&) = delete;
  LinearLibrary& operator=(const LinearLibrary&) = delete;
  ~LinearLibrary();

  /// The launch of `group`. An epilogue that the library refuses is done by a kernel of ours behind the product; the
  /// reason is appended to `notes`. Errors: unsupported, naming the operation and its shape, if it refuses the product
  /// itself. The launch keeps its descriptors; this object must outlive it.
  [[nodiscard]] Launch launch(const Addresses& addresses, const Group& group, ComputeType compute,
                              const kernels::Table& kernels, std::vector<std::string>& notes) const;
  [[nodiscard]] const CublasLt& library() const noexcept { return *library_; }

 private:
  std::shared_ptr<const CublasLt> library_;
  cublasLtHandle_t handle_ = nullptr;
};

/// Bytes of workspace offered to cuBLASLt. Source: its documentation recommends 32 MiB for Hopper.
inline constexpr std::size_t kLinearWorkspaceBytes = std::size_t{32} << 20;

}  // namespace hvd::models::cudnn
