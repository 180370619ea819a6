// cuBLASLt, loaded at run time like cuDNN (library.h).
//
// cuBLASLt is not linked. Its static library has several hundred megabytes, and a program linked to the shared library
// does not start where the shared library is missing. cuBLASLt's enumerations and the 64-byte struct of an algorithm
// are the same in CUDA 11 to 13.
#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <memory>
#include <string>

#include "engine/gpu/shared_library.h"

namespace hvd::models::cudnn {

/// The functions of cuBLASLt that we call.
struct LtFunctions {
  decltype(&::cublasLtGetVersion) get_version = nullptr;
  decltype(&::cublasLtGetStatusString) get_status_string = nullptr;
  decltype(&::cublasLtCreate) create = nullptr;
  decltype(&::cublasLtDestroy) destroy = nullptr;
  decltype(&::cublasLtMatmulDescCreate) create_product = nullptr;
  decltype(&::cublasLtMatmulDescDestroy) destroy_product = nullptr;
  decltype(&::cublasLtMatmulDescSetAttribute) set_product = nullptr;
  decltype(&::cublasLtMatrixLayoutCreate) create_layout = nullptr;
  decltype(&::cublasLtMatrixLayoutDestroy) destroy_layout = nullptr;
  decltype(&::cublasLtMatrixLayoutSetAttribute) set_layout = nullptr;
  decltype(&::cublasLtMatmulPreferenceCreate) create_preference = nullptr;
  decltype(&::cublasLtMatmulPreferenceDestroy) destroy_preference = nullptr;
  decltype(&::cublasLtMatmulPreferenceSetAttribute) set_preference = nullptr;
  decltype(&::cublasLtMatmulAlgoGetHeuristic) get_algorithms = nullptr;
  decltype(&::cublasLtMatmul) multiply = nullptr;
};

class CublasLt {
 public:
  /// Searches the places in gpu::candidates. Errors: unsupported if no library is found or a function is missing.
  static std::shared_ptr<const CublasLt> load(const gpu::LibrarySearch& search = {});
  /// Uses the functions that the caller gives, for tests.
  static std::shared_ptr<const CublasLt> with(const LtFunctions& functions);

  [[nodiscard]] const LtFunctions& call() const noexcept { return functions_; }
  [[nodiscard]] std::string version() const;  ///< e.g. "13.1.0"
  /// Checks the status that `call` returned. Errors: backend, naming the call and the library's reason.
  void check(cublasStatus_t status, const char* call) const;

 private:
  CublasLt() = default;

  LtFunctions functions_;
};

}  // namespace hvd::models::cudnn
