#include "models/cudnn/library.h"

#include <algorithm>
#include <array>
#include <vector>

#include "engine/base/error.h"
#include "engine/gpu/shared_library.h"

namespace hvd::models::cudnn {
namespace {

std::vector<std::string> default_names() {
  std::vector<std::string> names;
#ifdef HVD_CUDNN_LIBRARY  // where CMake found it: toolkits in wheels and modules are in no loader path
  names.emplace_back(HVD_CUDNN_LIBRARY);
#endif
  names.insert(names.end(), {"libcudnn.so.9", "libcudnn.so.8", "libcudnn.so"});
  return names;
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

std::shared_ptr<const Library> Library::load(std::span<const std::string> names) {
  const std::vector<std::string> defaults = default_names();
  if (names.empty()) names = defaults;
  const gpu::SharedLibrary file = gpu::require_library(
      names, "cuDNN", "install cuDNN 8.9 or 9 for this CUDA version, or put its folder into LD_LIBRARY_PATH");
  std::shared_ptr<Library> library(new Library());
  library->name_ = file.name();
  Functions& f = library->functions_;
  static_cast<void>(file.find("cudnnGetLastErrorString", f.get_last_error_string));
  if (!file.find("cudnnGetVersion", f.get_version) || !file.find("cudnnGetErrorString", f.get_error_string) ||
      !file.find("cudnnCreate", f.create_handle) || !file.find("cudnnDestroy", f.destroy_handle) ||
      !file.find("cudnnSetStream", f.set_stream) || !file.find("cudnnBackendCreateDescriptor", f.create) ||
      !file.find("cudnnBackendDestroyDescriptor", f.destroy) || !file.find("cudnnBackendSetAttribute", f.set) ||
      !file.find("cudnnBackendGetAttribute", f.get) || !file.find("cudnnBackendFinalize", f.finalize) ||
      !file.find("cudnnBackendExecute", f.execute)) {
    throw Error(Errc::kUnsupported,
                library->name_ + " lacks the backend API of cuDNN 8.9 or 9: point LD_LIBRARY_PATH at a newer one");
  }
  library->version_ = version_from_number(f.get_version());
  if (library->version_ < kOldestVersion) {
    throw Error(Errc::kUnsupported, library->name_ + " is cuDNN " + library->version_.text() + ", older than " +
                                        kOldestVersion.text() + ": point LD_LIBRARY_PATH at a newer one");
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
