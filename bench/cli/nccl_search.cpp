#include "bench/cli/nccl_search.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>

namespace hvd::bench {
namespace {

namespace fs = std::filesystem;

/// PREFIX/lib/python3.*/site-packages, in alphabetical order.
void add_site_packages(std::string_view prefix, std::vector<std::string>& folders) {
  if (prefix.empty()) return;
  std::vector<std::string> found;
  std::error_code absent;
  for (const fs::directory_entry& entry : fs::directory_iterator(fs::path(prefix) / "lib", absent)) {
    const fs::path packages = entry.path() / "site-packages";
    if (entry.path().filename().string().starts_with("python3") && fs::is_directory(packages, absent)) {
      found.push_back(packages);
    }
  }
  std::sort(found.begin(), found.end());
  folders.insert(folders.end(), found.begin(), found.end());
}

}  // namespace

comm::nccl::Search nccl_search(const Environment& environment) {
  comm::nccl::Search search;
  search.root = value_of(environment, "HVD_NCCL_ROOT");
  for (const char* const prefix : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    add_site_packages(value_of(environment, prefix), search.python_folders);
  }
  std::string_view path = value_of(environment, "PYTHONPATH");
  while (!path.empty()) {
    const std::size_t colon = std::min(path.find(':'), path.size());
    if (colon > 0) search.python_folders.emplace_back(path.substr(0, colon));
    path.remove_prefix(std::min(colon + 1, path.size()));
  }
  return search;
}

}  // namespace hvd::bench
