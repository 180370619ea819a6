#include "models/cudnn/library/library.h"

#include <algorithm>
#include <array>

#include "engine/base/error.h"
#include "engine/gpu/shared_library.h"

namespace hvd::models::cudnn {
namespace {

#ifndef HVD_CUDNN_LIBRARY  // where CMake found cuDNN
#define HVD_CUDNN_LIBRARY ""
#endif

gpu::WantedLibrary wanted_cudnn() {
  return {.what = "cuDNN",
          .files = {"libcudnn.so.9", "libcudnn.so.8", "libcudnn.so"},
          .root_variable = "HVD_CUDNN_ROOT",
          .root = &gpu::LibrarySearch::cudnn_root,
          .build_path = HVD_CUDNN_LIBRARY,
          .wheel_folders = {"nvidia/cudnn/lib"},
          .how_to_get = "install cuDNN 8.9 or 9 for this CUDA version"};
}

}  // namespace

std::string Version::text() const {
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
}

Version version_from_number(std::size_t number) noexcept {
  const auto n = static_cast<int>(number);
  const int unit = n >= 90000 ? 10000 : 1000;
  return {.major = n / unit, .minor = n % unit / 100, .patch = n % 100};
}

std::shared_ptr<const Library> Library::load(const gpu::LibrarySearch& search) {
  const gpu::SharedLibrary file = gpu::load_library(wanted_cudnn(), search);
  std::shared_ptr<Library> library(new Library());
  library->name_ = file.name();
  Functions& f = library->functions_;
  static_cast<void>(file.find("cudnnGetLastErrorString", f.get_last_error_string));
  static_cast<void>(file.find("cudnnGetCudartVersion", f.get_cuda_version));
  if (!file.find("cudnnGetVersion", f.get_version) || !file.find("cudnnGetErrorString", f.get_error_string) ||
      !file.find("cudnnCreate", f.create_handle) || !file.find("cudnnDestroy", f.destroy_handle) ||
      !file.find("cudnnSetStream", f.set_stream) || !file.find("cudnnBackendCreateDescriptor", f.create) ||
      !file.find("cudnnBackendDestroyDescriptor", f.destroy) || !file.find("cudnnBackendSetAttribute", f.set) ||
      !file.find("cudnnBackendGetAttribute", f.get) || !file.find("cudnnBackendFinalize", f.finalize) ||
      !file.find("cudnnBackendExecute", f.execute)) {
    gpu::refuse_library(wanted_cudnn(), file, "lacks the backend API of cuDNN 8.9 or 9");
  }
  library->version_ = version_from_number(f.get_version());
  if (library->version_ < kOldestVersion) {
    gpu::refuse_library(wanted_cudnn(), file,
                        "is cuDNN " + library->version_.text() + ", older than " + kOldestVersion.text());
  }
  return library;
}

std::shared_ptr<const Library> Library::with(const Functions& functions) {
  std::shared_ptr<Library> library(new Library());
  library->functions_ = functions;
  library->name_ = "given";
  library->version_ = version_from_number(functions.get_version());
  return library;
}

std::string Library::description() const {
  std::string text = "cuDNN " + version_.text();
  if (functions_.get_cuda_version == nullptr) return text;
  constexpr std::size_t kHere = CUDART_VERSION / 1000;
  const std::size_t there = functions_.get_cuda_version() / 1000;
  text += " for CUDA " + std::to_string(there);
  return there == kHere ? text : text + " (this program: " + std::to_string(kHere) + ")";
}

std::string Library::explain(cudnnStatus_t status) const {
  std::string text = functions_.get_error_string(status);
  if (functions_.get_last_error_string != nullptr) {
    std::array<char, 1024> last{};
    functions_.get_last_error_string(last.data(), last.size());
    if (last[0] != '\0') text += ": " + gpu::one_line(last.data());
  }
  return text;
}

}  // namespace hvd::models::cudnn
