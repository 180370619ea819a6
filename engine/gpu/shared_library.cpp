#include "engine/gpu/shared_library.h"

#include <dlfcn.h>

#include <algorithm>

#include "engine/base/error.h"

namespace hvd::gpu {

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

SharedLibrary::SharedLibrary(std::span<const std::string> names) {
  for (const std::string& name : names) {
    handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ != nullptr) {
      name_ = name;
      return;
    }
    const char* const why = dlerror();
    refusals_.push_back({name, one_line(why != nullptr ? why : name)});
  }
}

void* SharedLibrary::address(const char* symbol) const { return dlsym(handle_, symbol); }

SharedLibrary require_library(std::span<const std::string> names, const std::string& what,
                              const std::string& how_to_get) {
  SharedLibrary library(names);
  if (library.loaded()) return library;
  std::string tried;
  for (const SharedLibrary::Refusal& refusal : library.refusals()) tried += (tried.empty() ? "" : "; ") + refusal.why;
  throw Error(Errc::kUnsupported, what + " could not be loaded (" + tried + "): " + how_to_get);
}

}  // namespace hvd::gpu
