// Tests how a step times several ways to fuse and stores the result. Uses the fakes of machine.h.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "models/cudnn/lowering/lowering.h"
#include "tests/cudnn/lowering/fusions.h"
#include "tests/cudnn/lowering/networks.h"
#include "tests/cudnn/lowering/oracles.h"
#include "tests/cudnn/run/machine.h"

namespace hvd::models::cudnn::testing::fusion_test {
namespace {

// On the fake GPU, a step takes as long as it has launches.
TEST(Fusion, TimesWaysToFuseAndKeepsTheFastest) {
  const std::filesystem::path folder = own_folder("hvd_executor_fusions");
  std::filesystem::remove_all(folder);
  ServesAll oracle;
  Wish wish{.forward = tiny_resnet(2)};
  wish.fusions = {{.level = 0}, {.level = 2}, {.level = 1}};
  wish.executor.winners_folder = folder.string();
  const auto level_of = [&](int& plans, std::string& notes) {
    Machine machine(wish, oracle);
    plans = machine.plans;
    notes = joined(machine.step->notes());
    machine.step->forward_backward(machine.batch(), machine.sink);
    const std::string description = machine.step->description();
    return description.substr(description.find(" level ") + 7, 1);
  };
  int plans = 0;
  std::string notes;
  EXPECT_EQ(level_of(plans, notes), "0") << "not timed, for nobody asked for it";
  EXPECT_EQ(plans, 1);
  wish.executor.tune = true;
  EXPECT_EQ(level_of(plans, notes), "2");
  EXPECT_EQ(plans, 3);
  EXPECT_NE(notes.find("with level 0, "), std::string::npos) << notes;
  EXPECT_NE(notes.find("with level 2, "), std::string::npos) << notes;
  for (const bool tune : {true, false}) {  // the stored result is used, and nothing is timed
    wish.executor.tune = tune;
    EXPECT_EQ(level_of(plans, notes), "2");
    EXPECT_EQ(plans, 2) << "the first, whose file says which, and that";
    EXPECT_EQ(notes.find("a step takes"), std::string::npos) << notes;
  }
  wish.fusions = {{.level = 2}, {.level = 0}};
  wish.executor.tune = true;
  EXPECT_EQ(level_of(plans, notes), "2");
  EXPECT_EQ(plans, 2);
  wish.fusions = {{.level = 1}, {.level = 1, .images = ImageLayout::kPadded}};
  EXPECT_EQ(level_of(plans, notes), "1");
  EXPECT_EQ(notes.find("a step takes"), std::string::npos) << "the same program in fp32: " << notes;
  std::filesystem::remove_all(folder);
}

TEST(Fusion, AWayToFuseThatDoesNotFitIsLeftOut) {
  ServesAll oracle;
  Wish wish{.forward = tiny_resnet(64)};
  const auto used = [&](const FusionOptions& fusion) {
    wish.fusions = {fusion};
    Machine machine(wish, oracle);
    const gpu::MemoryState memory = machine.gpu.memory();
    return memory.total_bytes - memory.free_bytes;
  };
  const FusionOptions fused{.level = 2}, alone{.level = 0};
  const std::size_t less = used(fused), more = used(alone);
  ASSERT_LT(less, more);
  wish.fusions = {fused, alone};
  wish.executor.tune = true;
  wish.device_bytes = less + (more - less) / 2;
  Machine machine(wish, oracle);
  const std::string notes = joined(machine.step->notes());
  EXPECT_NE(notes.find("not used, for want of memory: level 0, "), std::string::npos) << notes;
  EXPECT_NE(machine.step->description().find("level 2"), std::string::npos);
  machine.step->forward_backward(machine.batch(), machine.sink);
}

// The first way to fuse wins. Winners that another way to fuse stored later must not change the engines of the first
// way.
TEST(Fusion, RunsAgainWhatItTimed) {
  const std::filesystem::path folder = own_folder("hvd_executor_again");
  std::filesystem::remove_all(folder);
  ServesAll oracle;
  Wish wish{.forward = tiny_resnet(2)};
  wish.fusions = {{.level = 2}, {.level = 0}};
  wish.executor.winners_folder = folder.string();
  wish.executor.tune = true;
  const std::string timed = Machine(wish, oracle).step->engines();
  wish.executor.tune = false;
  EXPECT_EQ(Machine(wish, oracle).step->engines(), timed);
  // Rank 0 has stored no winners. Winners that only this rank has stored must then not be used.
  wish.executor.exchange = [&](const std::string& mine) { return std::vector{mine.substr(0, mine.find("winner "))}; };
  wish.fusions = {{.level = 2}};
  const std::string told = Machine(wish, oracle).step->engines();
  wish.executor = {.seed = kSeed};
  EXPECT_EQ(told, Machine(wish, oracle).step->engines());
  std::filesystem::remove_all(folder);
}

// ---- Images as columns, where cuBLASLt refuses the products ----

/// Returns a network whose first convolution multiplies a matrix of image windows (ImageLayout::kColumns). If
/// `refused`, cuBLASLt refuses products with 100 rows or more. Only the product with this matrix has so many rows.
Wish columns_wish(bool refused) {
  Wish wish{.forward = models::testing::tiny_vgg(3)};
  wish.plan = {.compute = ComputeType::kBf16, .gradient = DataType::kBF16, .fusion = reading(ImageLayout::kColumns, 1)};
  if (refused) wish.script = [](Recorder& recorder) { recorder.refused_rows = 100; };
  return wish;
}

bool multiplies_columns(const Machine& machine) {
  return std::any_of(machine.plan.program.groups.begin(), machine.plan.program.groups.end(),
                     [&](const Group& group) { return reads_columns(machine.plan.program, group); });
}

TEST(ColumnsOfImages, GiveWayToPaddedOnes) {
  ServesAll oracle;
  Wish padded = columns_wish(false);
  {
    const Machine machine(padded, oracle);
    EXPECT_TRUE(multiplies_columns(machine));
    EXPECT_EQ(joined(machine.step->notes()).find("padded"), std::string::npos) << joined(machine.step->notes());
  }
  padded.plan.fusion.images = ImageLayout::kPadded;
  std::vector<float> expected;
  {
    Machine machine(padded, oracle);
    expected = gradients_of(machine);
  }
  Machine machine(columns_wish(true), oracle);
  EXPECT_EQ(machine.plans, 2);
  EXPECT_FALSE(multiplies_columns(machine));
  EXPECT_EQ(gradients_of(machine), expected);
  EXPECT_NE(machine.step->description().find("images padded"), std::string::npos) << machine.step->description();
  const std::string notes = joined(machine.step->notes());
  EXPECT_NE(notes.find("images are padded, not columns: cuBLASLt 13.1.0 has no algorithm for "), std::string::npos)
      << notes;
  EXPECT_EQ(notes.find("--dtype"), std::string::npos) << notes;
}

TEST(ColumnsOfImages, AreTriedAgainByARunThatTakesWhatWasKept) {
  const std::filesystem::path folder = own_folder("hvd_fusion_columns");
  std::filesystem::remove_all(folder);
  ServesAll oracle;
  Wish wish = columns_wish(true);
  wish.fusions = {reading(ImageLayout::kColumns, 1), reading(ImageLayout::kColumns, 2)};
  wish.executor.tune = true;
  wish.executor.winners_folder = folder.string();
  for (int run = 0; run < 2; ++run) {
    Machine machine(wish, oracle);
    EXPECT_FALSE(multiplies_columns(machine));
    const std::string notes = joined(machine.step->notes());
    EXPECT_NE(notes.find("images are padded, not columns: "), std::string::npos) << notes;
    EXPECT_EQ(notes.find("images as columns"), std::string::npos) << "timed, but never run: " << notes;
    machine.step->forward_backward(machine.batch(), machine.sink);
  }
  Machine other(columns_wish(false), oracle);  // cuBLASLt does not refuse the products, as after an update of cuBLASLt
  EXPECT_TRUE(multiplies_columns(other));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace hvd::models::cudnn::testing::fusion_test
