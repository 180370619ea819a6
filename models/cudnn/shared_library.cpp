#include "models/cudnn/shared_library.h"

#include <dlfcn.h>

#include <algorithm>

#include "engine/base/error.h"

namespace hvd::models::cudnn {

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

SharedLibrary::SharedLibrary(std::span<const std::string> names, const std::string& what,
                             const std::string& how_to_get) {
  std::string tried;
  for (const std::string& name : names) {
    handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ != nullptr) {
      name_ = name;
      return;
    }
    const char* why = dlerror();
    tried += (tried.empty() ? "" : "; ") + one_line(why != nullptr ? why : name);
  }
  throw Error(Errc::kUnsupported, what + " could not be loaded (" + tried + "): " + how_to_get);
}

void* SharedLibrary::address(const char* symbol) const { return dlsym(handle_, symbol); }

}  // namespace hvd::models::cudnn
