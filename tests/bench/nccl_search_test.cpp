// Which folders of the environment are searched for NCCL.
#include "bench/cli/nccl_search.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace hvd::bench {
namespace {

namespace fs = std::filesystem;

TEST(NcclSearch, TakesTheRootAndPythonsFolders) {
  const fs::path prefix = fs::path(::testing::TempDir()) / "venv";
  fs::remove_all(prefix);
  fs::create_directories(prefix / "lib/python3.11/site-packages");
  fs::create_directories(prefix / "lib/python3.12");  // none inside
  fs::create_directories(prefix / "lib/other/site-packages");
  const auto search = nccl_search({{"HVD_NCCL_ROOT", "/opt/nccl"},
                                   {"VIRTUAL_ENV", prefix.string()},
                                   {"CONDA_PREFIX", "/nowhere"},
                                   {"PYTHONPATH", "/a::/b"}});
  EXPECT_EQ(search.root, "/opt/nccl");
  EXPECT_EQ(search.python_folders, (std::vector<std::string>{prefix / "lib/python3.11/site-packages", "/a", "/b"}));
}

TEST(NcclSearch, AnEmptyEnvironmentLeavesItToTheLoader) {
  const auto search = nccl_search({});
  EXPECT_TRUE(search.root.empty() && search.python_folders.empty());
}

}  // namespace
}  // namespace hvd::bench
