// Tests that environment variables reach the search for libraries. tests/gpu tests the search itself.
#include <gtest/gtest.h>

#include "bench/world/gpu_backend.h"

namespace hvd::bench::library_search_test {
namespace {

TEST(LibrarySearch, ReadsTheEnvironment) {
  const auto search = library_search({{"HVD_NCCL_ROOT", "/opt/nccl"}, {"PYTHONPATH", "/nowhere:/"}});
  EXPECT_EQ(search.nccl_root, "/opt/nccl");
  EXPECT_EQ(search.cudnn_root, "");
  EXPECT_EQ(search.python_folders, std::vector<std::string>{"/"});
  EXPECT_TRUE(library_search({}).nccl_root.empty() && library_search({}).python_folders.empty());
}

}  // namespace
}  // namespace hvd::bench::library_search_test
