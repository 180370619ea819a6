// That the environment's variables reach the search for libraries; what it makes of them: tests/gpu.
#include "bench/cli/nccl_search.h"

#include <gtest/gtest.h>

namespace hvd::bench {
namespace {

TEST(NcclSearch, ReadsTheEnvironment) {
  const auto search = nccl_search({{"HVD_NCCL_ROOT", "/opt/nccl"}, {"PYTHONPATH", "/nowhere:/"}});
  EXPECT_EQ(search.nccl_root, "/opt/nccl");
  EXPECT_EQ(search.cudnn_root, "");
  EXPECT_EQ(search.python_folders, std::vector<std::string>{"/"});
  EXPECT_TRUE(nccl_search({}).nccl_root.empty() && nccl_search({}).python_folders.empty());
}

}  // namespace
}  // namespace hvd::bench
