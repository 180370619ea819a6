// Tests the names in /dev/shm that a process leaves behind when it ends early.
#include "engine/comm/shm/shared_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "engine/base/error.h"
#include "engine/comm/communicator.h"

namespace hvd::comm::shared_memory_test {
namespace {

bool there(const std::string& name) {
  try {
    (void)SharedMemory::open(name, 4096);
    return true;
  } catch (const Error&) {
    return false;
  }
}

TEST(SharedMemory, AProcessRemovesItsOwnNamesAndNoOthers) {
  const std::string pid = std::to_string(::getpid());
  const std::string mine = "/hvd_bench." + pid + ".a";
  const std::string another = "/hvd_bench." + pid + "0.a";  // of another process, whose id begins with ours
  const SharedMemory first = SharedMemory::create(mine, 4096);
  const SharedMemory second = SharedMemory::create(another, 4096);
  remove_shared_names();
  EXPECT_FALSE(there(mine));
  EXPECT_TRUE(there(another));
  SharedMemory::unlink(another);
}

}  // namespace
}  // namespace hvd::comm::shared_memory_test
