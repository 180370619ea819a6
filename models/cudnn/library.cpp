#include "models/cudnn/library.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <vector>

#include "engine/base/error.h"

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

// One line: the loader and cuDNN write several.
std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

template <class Function>
bool find(void* library, const char* symbol, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, symbol));
  return function != nullptr;
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
  void* handle = nullptr;
  std::string tried;
  std::shared_ptr<Library> library(new Library());
  for (const std::string& name : names) {
    // Never closed: cuDNN leaves thread-local destructors behind, which would run in unmapped memory.
    handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr) {
      library->name_ = name;
      break;
    }
    const char* why = dlerror();
    tried += (tried.empty() ? "" : "; ") + one_line(why != nullptr ? why : name);
  }
  if (handle == nullptr) {
    throw Error(Errc::kUnsupported, "cuDNN could not be loaded (" + tried +
                                        "): install cuDNN 8.9 or 9 for this CUDA version, or put its folder into "
                                        "LD_LIBRARY_PATH");
  }
  Functions& f = library->functions_;
  static_cast<void>(find(handle, "cudnnGetLastErrorString", f.get_last_error_string));
  if (!find(handle, "cudnnGetVersion", f.get_version) || !find(handle, "cudnnGetErrorString", f.get_error_string) ||
      !find(handle, "cudnnBackendCreateDescriptor", f.create) ||
      !find(handle, "cudnnBackendDestroyDescriptor", f.destroy) || !find(handle, "cudnnBackendSetAttribute", f.set) ||
      !find(handle, "cudnnBackendGetAttribute", f.get) || !find(handle, "cudnnBackendFinalize", f.finalize)) {
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

std::string Library::explain(cudnnStatus_t status) const {
  std::string text = functions_.get_error_string(status);
  if (functions_.get_last_error_string != nullptr) {
    std::array<char, 1024> last{};
    functions_.get_last_error_string(last.data(), last.size());
    if (last[0] != '\0') text += ": " + one_line(last.data());
  }
  return text;
}

}  // namespace hvd::models::cudnn
