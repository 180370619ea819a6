#include "engine/gpu/shared_library.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "engine/base/error.h"

namespace hvd::gpu {
namespace {

namespace fs = std::filesystem;

/// Calls visit(part) for each non-empty part of a PATH, until visit() returns true.
template <class Visit>
void for_each_part(std::string_view path, Visit&& visit) {
  while (!path.empty()) {
    const std::size_t colon = std::min(path.find(':'), path.size());
    if (colon > 0 && visit(path.substr(0, colon))) return;
    path.remove_prefix(std::min(colon + 1, path.size()));
  }
}

/// A list of existing folders without duplicates, in the order in which they are added.
class Folders {
 public:
  void add(const fs::path& folder) {
    std::error_code absent;
    if (fs::is_directory(folder, absent) && std::find(all_.begin(), all_.end(), folder) == all_.end()) {
      all_.push_back(folder);
    }
  }
  /// Adds PREFIX/lib/python3*/{site,dist}-packages in alphabetical order. Debian's Python uses dist-packages.
  void add_prefix(const fs::path& prefix) {
    if (prefix.empty()) return;
    std::vector<fs::path> folders;
    std::error_code absent;
    for (const fs::directory_entry& entry : fs::directory_iterator(prefix / "lib", absent)) {
      if (!entry.path().filename().string().starts_with("python3")) continue;
      folders.push_back(entry.path() / "site-packages");
      folders.push_back(entry.path() / "dist-packages");
    }
    std::sort(folders.begin(), folders.end());
    for (const fs::path& folder : folders) add(folder);
  }
  /// Adds the package folders of PREFIX, for a program PREFIX/bin/python3. If the program is a link, also adds the
  /// package folders of the prefix of the link's target.
  void add_program(const fs::path& program) {
    add_prefix(program.parent_path().parent_path());
    std::error_code dangling;
    const fs::path real = fs::canonical(program, dangling);
    if (dangling) return;
    add_prefix(real.parent_path().parent_path());
    if (real.parent_path() == "/usr/bin") add_prefix("/usr/local");  // where pip installs for Debian's Python
  }
  [[nodiscard]] std::vector<std::string> texts() const { return {all_.begin(), all_.end()}; }

 private:
  std::vector<fs::path> all_;
};

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

LibrarySearch library_search(const std::function<std::string_view(const char* variable)>& value_of) {
  LibrarySearch search;
  search.cudnn_root = value_of("HVD_CUDNN_ROOT");
  search.cublas_root = value_of("HVD_CUBLAS_ROOT");
  search.nccl_root = value_of("HVD_NCCL_ROOT");
  Folders folders;
  for (const char* const prefix : {"VIRTUAL_ENV", "CONDA_PREFIX"}) folders.add_prefix(value_of(prefix));
  for_each_part(value_of("PYTHONPATH"), [&](std::string_view folder) {
    folders.add(folder);
    return false;
  });
  for_each_part(value_of("PATH"), [&](std::string_view folder) {
    const fs::path program = fs::path(folder) / "python3";
    const bool found = ::access(program.c_str(), X_OK) == 0;
    if (found) folders.add_program(program);
    return found;
  });
  if (const std::string_view home = value_of("HOME"); !home.empty()) folders.add_prefix(fs::path(home) / ".local");
  search.python_folders = folders.texts();
  return search;
}

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

SharedLibrary::SharedLibrary(std::span<const std::string> names, Scope scope) {
  for (const std::string& name : names) {
    handle_ = dlopen(name.c_str(), RTLD_NOW | (scope == Scope::kGlobal ? RTLD_GLOBAL : RTLD_LOCAL));
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
