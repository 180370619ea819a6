// Finds the folders in which Python keeps packages on this machine, without starting Python.
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "engine/gpu/shared_library.h"

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

}  // namespace hvd::gpu
