#include "models/cudnn/library/cublaslt.h"

#include <vector>

#include "engine/base/error.h"
#include "engine/gpu/shared_library.h"

namespace hvd::models::cudnn {

namespace {

#ifndef HVD_CUBLASLT_LIBRARY  // where CMake found cuBLASLt
#define HVD_CUBLASLT_LIBRARY ""
#endif

/// Asks for the cuBLASLt of this build's CUDA version. Another version would load a second CUDA into the process.
gpu::WantedLibrary wanted_cublaslt() {
  const std::string major = std::to_string(CUBLAS_VER_MAJOR);
  return {.what = "cuBLASLt",
          .files = {"libcublasLt.so." + major, "libcublasLt.so"},
          .root_variable = "HVD_CUBLAS_ROOT",
          .root = &gpu::LibrarySearch::cublas_root,
          .build_path = HVD_CUBLASLT_LIBRARY,
          .wheel_folders = {"nvidia/cublas/lib", "nvidia/cu" + major + "/lib"},
          .how_to_get = "install the CUDA " + major + " libraries"};
}

}  // namespace

std::shared_ptr<const CublasLt> CublasLt::load(const gpu::LibrarySearch& search) {
  const gpu::SharedLibrary file = gpu::load_library(wanted_cublaslt(), search);
  std::shared_ptr<CublasLt> library(new CublasLt());
  LtFunctions& f = library->functions_;
  if (!file.find("cublasLtGetVersion", f.get_version) || !file.find("cublasLtGetStatusString", f.get_status_string) ||
      !file.find("cublasLtCreate", f.create) || !file.find("cublasLtDestroy", f.destroy) ||
      !file.find("cublasLtMatmulDescCreate", f.create_product) ||
      !file.find("cublasLtMatmulDescDestroy", f.destroy_product) ||
      !file.find("cublasLtMatmulDescSetAttribute", f.set_product) ||
      !file.find("cublasLtMatrixLayoutCreate", f.create_layout) ||
      !file.find("cublasLtMatrixLayoutDestroy", f.destroy_layout) ||
      !file.find("cublasLtMatrixLayoutSetAttribute", f.set_layout) ||
      !file.find("cublasLtMatmulPreferenceCreate", f.create_preference) ||
      !file.find("cublasLtMatmulPreferenceDestroy", f.destroy_preference) ||
      !file.find("cublasLtMatmulPreferenceSetAttribute", f.set_preference) ||
      !file.find("cublasLtMatmulAlgoGetHeuristic", f.get_algorithms) || !file.find("cublasLtMatmul", f.multiply)) {
    gpu::refuse_library(wanted_cublaslt(), file, "lacks functions of cuBLASLt 11.4 or newer");
  }
  return library;
}

std::shared_ptr<const CublasLt> CublasLt::with(const LtFunctions& functions) {
  std::shared_ptr<CublasLt> library(new CublasLt());
  library->functions_ = functions;
  return library;
}

std::string CublasLt::version() const {
  const std::size_t number = functions_.get_version();  // since cuBLAS 11: 10000 * major + 100 * minor + patch
  return std::to_string(number / 10000) + "." + std::to_string(number / 100 % 100) + "." + std::to_string(number % 100);
}

void CublasLt::check(cublasStatus_t status, const char* call) const {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(Errc::kBackend, std::string(call) + ": " + functions_.get_status_string(status));
}

}  // namespace hvd::models::cudnn
