#include "engine/gpu/shared_library.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>

#include <algorithm>
#include <filesystem>

#include "engine/base/error.h"

namespace hvd::gpu {
namespace {

namespace fs = std::filesystem;

/// Says what to do about a library that is absent or not usable.
std::string advice(const WantedLibrary& wanted) {
  return fmt::format("{}, or name its folder in LD_LIBRARY_PATH or {}", wanted.how_to_get, wanted.root_variable);
}

/// Names the absent files in one phrase, because many places are searched, and gives the reason for each broken file.
std::string explain(std::span<const SharedLibrary::Refusal> refusals) {
  std::string absent, broken;
  for (const auto& [name, why] : refusals) {
    // The loader's message begins with the absent file. If that file is not `name`, then `name` exists and a library
    // that `name` needs is absent.
    if (why.starts_with(name + ": ") && why.find("No such file") != std::string::npos) {
      absent.append(absent.empty() ? "; there is no " : ", ").append(name);
    } else {
      broken.append("; ").append(name).append(": ").append(why);
    }
  }
  return (absent + broken).substr(2);
}

}  // namespace

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

std::string SharedLibrary::path() const {
  const link_map* map = nullptr;
  if (name_.find('/') != std::string::npos || dlinfo(handle_, RTLD_DI_LINKMAP, static_cast<void*>(&map)) != 0)
    return name_;
  return map->l_name;
}

void* SharedLibrary::address(const char* symbol) const { return dlsym(handle_, symbol); }

std::vector<std::string> candidates(const WantedLibrary& wanted, const LibrarySearch& search) {
  std::vector<std::string> paths;
  const auto add = [&](const fs::path& folder) {
    for (const std::string& file : wanted.files) paths.push_back(folder / file);
  };
  if (const std::string& root = search.*wanted.root; !root.empty()) {
    for (const char* const below : {"lib", "lib64", ""}) add(fs::path(root) / below);
    return paths;  // a user who names a folder wants no library from elsewhere
  }
  paths = wanted.files;
  if (!wanted.build_path.empty()) paths.push_back(wanted.build_path);
  for (const std::string& packages : search.python_folders) {
    for (const std::string& wheel : wanted.wheel_folders) add(fs::path(packages) / wheel);
  }
  return paths;
}

SharedLibrary load_library(const WantedLibrary& wanted, const LibrarySearch& search) {
  SharedLibrary library(candidates(wanted, search));
  if (library.loaded()) return library;
  throw Error(Errc::kUnsupported,
              fmt::format("{} could not be loaded ({}): {}", wanted.what, explain(library.refusals()), advice(wanted)));
}

void refuse_library(const WantedLibrary& wanted, const SharedLibrary& library, const std::string& trouble) {
  throw Error(Errc::kUnsupported, fmt::format("{} {}: {}", library.path(), trouble, advice(wanted)));
}

}  // namespace hvd::gpu
