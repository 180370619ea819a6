// Tests how candidate engines and algorithms are timed, and how later runs use the stored winners. Uses the fakes of
// machine.h.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/cudnn/lowering/networks.h"
#include "tests/cudnn/lowering/oracles.h"
#include "tests/cudnn/run/machine.h"

namespace hvd::models::cudnn::testing::tuning_test {
namespace {

using Operations = std::vector<int>;

TEST(Tuning, TimesTheCandidatesOnceAndKeepsTheWinners) {
  const std::filesystem::path folder = own_folder("hvd_executor_winners");
  std::filesystem::remove_all(folder);
  ServesAll oracle;
  Wish wish{.forward = tiny_resnet(2)};
  wish.executor.tune = true;
  wish.executor.winners_folder = folder.string();
  double loss = 0;
  {
    Machine machine(wish, oracle);
    loss = machine.step->forward_backward(machine.batch(), machine.sink);
    const Winners kept = load_winners((folder / winners_file_name(machine.plan)).string(), machine.plan);
    EXPECT_EQ(kept.why_not, "");
    const auto products = std::count_if(kept.list.begin(), kept.list.end(),
                                        [](const Winner& winner) { return !winner.algorithm.empty(); });
    EXPECT_EQ(kept.list.size(), machine.plan.engines.size() + static_cast<std::size_t>(products));
    EXPECT_EQ(products, 3) << "the last layer, forward and backward";
  }
  Wish plain = wish;
  plain.executor = {.seed = kSeed};
  Machine untuned(plain, oracle);
  EXPECT_EQ(untuned.step->forward_backward(untuned.batch(), untuned.sink), loss);  // timing does not change the step
  std::filesystem::remove_all(folder);
}

TEST(Tuning, WithoutMemoryToTimeEnginesTheFirstOnesRun) {
  ServesAll oracle;
  Wish wish{.forward = tiny_resnet(2)};
  std::string engines;
  double loss = 0;
  {
    Machine machine(wish, oracle);
    const gpu::MemoryState memory = machine.gpu.memory();
    wish.device_bytes = memory.total_bytes - memory.free_bytes + (std::size_t{1} << 20);
    engines = machine.step->engines();
    loss = machine.step->forward_backward(machine.batch(), machine.sink);
  }
  const std::filesystem::path folder = own_folder("hvd_untimed");
  std::filesystem::remove_all(folder);
  wish.executor.tune = true;
  wish.executor.winners_folder = folder.string();
  const auto script = [](Recorder& recorder) { recorder.second_workspace = std::size_t{64} << 20; };
  {
    Wish roomy = wish;
    roomy.device_bytes = std::size_t{256} << 20;
    roomy.executor.winners_folder.clear();
    roomy.script = script;
    const Machine machine(roomy, oracle);  // with more memory, the same engines are timed
    const std::string notes = joined(machine.step->notes());
    EXPECT_TRUE(notes.starts_with("engines: ") && notes.ends_with(" s to time them\n")) << notes;
  }
  wish.script = script;
  int exchanges = 0;
  wish.executor.exchange = [&](const std::string& mine) {
    ++exchanges;
    return std::vector{mine};
  };
  Machine machine(wish, oracle);
  const std::string notes = joined(machine.step->notes());
  EXPECT_NE(notes.find("engines were not timed, for want of memory (GPU 0 (fake): batch 2 needs "), std::string::npos)
      << notes;
  EXPECT_EQ(machine.step->engines(), engines);
  EXPECT_EQ(machine.step->forward_backward(machine.batch(), machine.sink), loss);
  EXPECT_EQ(exchanges, 3) << "known winners, plan, timed winners: other ranks would wait for the last, too";
  EXPECT_FALSE(std::filesystem::exists(folder)) << "nothing was measured";
}

TEST(Tuning, ACandidateThatFailsWhenItIsTimedIsLeftOut) {
  ServesAll oracle;
  Wish wish{.forward = tiny_resnet(2)};
  wish.executor.tune = true;
  wish.script = [](Recorder& recorder) {
    recorder.refuses_launch = [](std::int64_t engine, const Operations&) { return engine == 2; };
    recorder.refuses_product = [](int algorithm, int) { return algorithm == 2; };
  };
  Machine machine(wish, oracle);
  EXPECT_EQ(machine.step->engines().find(" 2[]"), std::string::npos) << machine.step->engines();
  const std::string notes = joined(machine.step->notes());
  EXPECT_NE(notes.find("engine 2[] does not run: cudnnBackendExecute("), std::string::npos) << notes;
  machine.step->forward_backward(machine.batch(), machine.sink);
}

// On the fake GPU the time is the number of launches. All algorithms therefore take equally long, and the first would
// win. The exchange names another algorithm as rank 0's winner, and this algorithm must run.
TEST(Tuning, ProductsRunTheAlgorithmThatWon) {
  ServesAll oracle;
  const std::filesystem::path folder = own_folder("hvd_products");
  std::filesystem::remove_all(folder);
  Wish wish{.forward = tiny_resnet(2)};
  wish.executor.tune = true;
  wish.executor.winners_folder = folder.string();
  const std::string second = "lt:0000000000000002";
  wish.executor.exchange = [&](std::string text) {
    for (std::size_t at = 0; (at = text.find("lt:", at)) != std::string::npos; at += second.size()) {
      text.replace(at, second.size(), second);
    }
    return std::vector{text};
  };
  const auto runs_second = [](Machine& machine) {
    machine.step->forward_backward(machine.batch(), machine.sink);
    const auto& calls = machine.recorder.calls;
    return std::all_of(calls.begin(), calls.end(), [](const Call& call) {
      return !call.what.starts_with("cublaslt") || call.what.ends_with("algorithm 2");
    });
  };
  std::string engines;
  {
    Machine machine(wish, oracle);
    EXPECT_TRUE(runs_second(machine));
    engines = machine.step->engines();
  }
  // A later run must use the stored winners and time nothing.
  wish.executor.tune = false;
  wish.executor.exchange = {};
  Machine machine(wish, oracle);
  EXPECT_TRUE(runs_second(machine));
  EXPECT_EQ(machine.step->engines(), engines);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace hvd::models::cudnn::testing::tuning_test
