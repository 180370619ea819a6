// Tests how ranks agree about engines, winners and fusions. Each rank has a fake GPU (ranks.h). Some ranks have
// libraries that refuse work, or less memory than the other ranks, or send damaged texts. Every error must be the same
// on all ranks.
#include "tests/cudnn/run/ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "models/cudnn/plan/winners.h"
#include "tests/cudnn/lowering/fusions.h"
#include "tests/cudnn/lowering/networks.h"

namespace hvd::models::cudnn::testing::ranks_test {
namespace {

using Operations = std::vector<int>;

bool holds(const Operations& operations, int type) {
  return std::find(operations.begin(), operations.end(), type) != operations.end();
}

Wish small_wish() { return {.forward = tiny_resnet(2)}; }

/// Returns the wish of a rank on which no engine runs a convolution with statistics.
Wish without_statistics() {
  Wish wish = small_wish();
  wish.script = [](Recorder& recorder) {
    recorder.refuses_plan = [](std::int64_t /*engine*/, const Operations& operations) {
      return holds(operations, CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR);
    };
  };
  return wish;
}

bool has_statistics(const Outcome& outcome) {
  const auto& groups = outcome.plan.program.groups;
  return std::any_of(groups.begin(), groups.end(), [](const Group& group) {
    return group.provider == Provider::kCudnn && has(group, OpType::kStatistics);
  });
}

/// Expects that all ranks end with the same error. Its text must begin with `begin` and contain `part`.
void expect_error(const std::vector<Outcome>& outcomes, const std::string& begin, const std::string& part) {
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.error, outcomes[0].error);
    EXPECT_TRUE(outcome.error.starts_with(begin)) << outcome.error;
    EXPECT_NE(outcome.error.find(part), std::string::npos) << outcome.error;
  }
}

/// Returns how many bytes of device memory a step takes.
std::size_t used_bytes(const Wish& wish) {
  ServesAll oracle;
  Machine machine(wish, oracle);
  const gpu::MemoryState memory = machine.gpu.memory();
  return memory.total_bytes - memory.free_bytes;
}

std::filesystem::path empty_folder(const std::string& name) {
  std::filesystem::path folder = own_folder(name);
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder;
}

// ---- Engines that fail ----

TEST(Ranks, WhatOneRankFindsAllRanksLeaveOut) {
  const std::vector<Outcome> outcomes = on_ranks({small_wish(), without_statistics(), small_wish()});
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.error, "");
    EXPECT_FALSE(has_statistics(outcome));
    EXPECT_EQ(program_hash(outcome.plan), program_hash(outcomes[0].plan));
    EXPECT_EQ(chosen_text(outcome.plan), chosen_text(outcomes[0].plan));
    EXPECT_EQ(outcome.exchanges, 3U) << "winners, plan, second plan";
    EXPECT_NE(outcome.notes.find("level 2, conv+statistics: cudnnBackendFinalize(plan): NOT_SUPPORTED"),
              std::string::npos)
        << outcome.notes;
  }
  EXPECT_EQ(outcomes[0].plans, 2);
}

TEST(Ranks, ThatFindTheSameFailuresNeedNoSecondPlan) {
  for (const Outcome& outcome : on_ranks({without_statistics(), without_statistics()})) {
    EXPECT_EQ(outcome.error, "");
    EXPECT_FALSE(has_statistics(outcome));
    EXPECT_EQ(outcome.exchanges, 2U);
  }
}

TEST(Ranks, ARankOnAnotherGpuPlansForItself) {
  Wish other = without_statistics();
  other.device = "else";
  const std::vector<Outcome> outcomes = on_ranks({small_wish(), other});
  EXPECT_TRUE(has_statistics(outcomes[0]));
  EXPECT_FALSE(has_statistics(outcomes[1]));
  EXPECT_EQ(outcomes[0].plans, 1);
  EXPECT_EQ(outcomes[0].notes, "");
}

TEST(Ranks, AnEngineThatFailsInTheSecondPlanEndsTheRun) {
  std::atomic<bool> second = false;
  Wish fails_later = small_wish();
  fails_later.script = [&](Recorder& recorder) {
    recorder.refuses_launch = [&](std::int64_t engine, const Operations& operations) {
      return second && engine == 1 && holds(operations, CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR);
    };
  };
  const auto outcomes = on_ranks({fails_later, without_statistics()},
                                 [&](std::size_t rank, std::size_t number, const std::string& /*text*/) {
                                   if (rank == 0 && number == 1) second = true;
                                 });
  expect_error(outcomes, "backend: rank 0: engine 1[2=5] does not run cudnn; ",
               " on fake, cuDNN 9.19.0 (cudnnBackendExecute(wgrad): EXECUTION_FAILED) in a second plan, made without "
               "the engines that had failed before; use a lower --fusion-level, or leave out this GPU");
}

TEST(Ranks, EqualGpusThatPlanDifferentlyAreNamed) {
  Wish other = small_wish();
  other.plan.fusion.level = 1;
  std::size_t longest = 0;
  const auto outcomes = on_ranks({small_wish(), small_wish(), other},
                                 [&](std::size_t rank, std::size_t /*number*/, const std::string& text) {
                                   if (rank > 0) longest = std::max(longest, text.size());
                                 });
  expect_error(outcomes, "mismatch: rank 2: its plan (", "), whose GPU is equal (fake, cuDNN 9.19.0); give both hosts");
  EXPECT_LT(longest, 100U) << "bytes that every rank sends to all others at every start";
}

TEST(Ranks, TheErrorOfOneRankIsThatOfAll) {
  Wish breaks = small_wish();
  breaks.script = [](Recorder& recorder) {
    recorder.refuses_launch = [&recorder](std::int64_t, const Operations&) {
      recorder.gpu().break_down("an illegal memory access");
      return false;
    };
  };
  expect_error(on_ranks({small_wish(), breaks}), "backend: rank 1: trying engine 1[2=5] for cudnn; ",
               ": fake GPU 0: an illegal memory access");
}

TEST(Ranks, ATextThatCannotBeReadIsNamed) {
  struct Case {
    std::size_t number, rank;
    const char* text;
  };
  Wish wish = small_wish();
  wish.fusions = {{.level = 2}, {.level = 0}};
  wish.executor.tune = true;
  for (const Case& c : {Case{0, 0, ""}, Case{0, 0, ".rubbish"}, Case{0, 1, "Z"}, Case{1, 1, "."},
                        Case{1, 1, ".fake, cuDNN 9.19.0\n"}, Case{1, 0, ".fake, cuDNN 9.19.0\n0\nno tabs\n"},
                        Case{2, 0, ".hvd_bench cudnn winners 2\nand no more"}, Case{6, 0, ".slower"}}) {
    SCOPED_TRACE(std::to_string(c.number) + c.text);
    const auto outcomes = on_ranks({wish, wish, wish}, [&](std::size_t rank, std::size_t number, std::string& text) {
      if (rank == c.rank && number == c.number) text = c.text;
    });
    expect_error(outcomes, "mismatch: rank " + std::to_string(c.rank) + ": what it says of its engines cannot be",
                 " read; start the same program on all ranks");
    EXPECT_EQ(outcomes[0].exchanges, c.number + 1);
  }
}

TEST(Ranks, ColumnsOfImagesGiveWayOnAllRanksOfAKind) {
  for (const bool equal : {true, false}) {  // true: both ranks have the same kind of GPU
    Wish serves{.forward = models::testing::tiny_vgg(3)};
    serves.plan = {
        .compute = ComputeType::kBf16, .gradient = DataType::kBF16, .fusion = reading(ImageLayout::kColumns, 1)};
    Wish refuses = serves;
    refuses.script = [](Recorder& recorder) { recorder.refused_rows = 100; };  // refuses only the product of columns
    if (!equal) refuses.device = "else";
    const auto multiplies_columns = [](const Outcome& outcome) {
      const auto& groups = outcome.plan.program.groups;
      return std::any_of(groups.begin(), groups.end(),
                         [&](const Group& group) { return reads_columns(outcome.plan.program, group); });
    };
    const std::vector<Outcome> outcomes = on_ranks({refuses, serves});
    EXPECT_EQ(outcomes[1].error, "");
    EXPECT_FALSE(multiplies_columns(outcomes[0]));
    EXPECT_EQ(multiplies_columns(outcomes[1]), !equal);
  }
}

// ---- Memory ----

TEST(Ranks, OneRankOutOfMemoryEndsAllWithItsError) {
  const Wish roomy{.forward = tiny_resnet(64)};
  Wish tight = roomy;
  tight.device_bytes = used_bytes(roomy) - (std::size_t{1} << 20);
  for (const bool first : {true, false}) {
    const std::vector<Outcome> outcomes = on_ranks({first ? tight : roomy, first ? roomy : tight});
    expect_error(outcomes, std::string("out_of_memory: rank ") + (first ? "0" : "1") + ": GPU 0 (fake): batch 64 needs",
                 " fits (--batch-size)");
  }
}

TEST(Ranks, AFusionThatDoesNotFitOnOneRankIsLeftOutOnAll) {
  const FusionOptions fused{.level = 2}, alone{.level = 0};
  Wish roomy{.forward = tiny_resnet(64)};
  roomy.fusions = {fused};
  const std::size_t less = used_bytes(roomy);
  roomy.fusions = {alone};
  const std::size_t more = used_bytes(roomy);
  ASSERT_LT(less, more);
  roomy.fusions = {fused, alone, {.level = 1}};
  roomy.executor.tune = true;
  Wish tight = roomy;
  tight.device_bytes = less + (more - less) / 2;
  for (const bool first : {true, false}) {
    for (const Outcome& outcome : on_ranks({first ? tight : roomy, first ? roomy : tight})) {
      EXPECT_EQ(outcome.error, "");
      EXPECT_NE(outcome.notes.find("not used, for want of memory: level 0, "), std::string::npos) << outcome.notes;
      EXPECT_NE(outcome.description.find("level 2"), std::string::npos) << outcome.description;
      EXPECT_EQ(outcome.plans, 3) << "the fusions after it are tried";
    }
  }
}

// One rank has too little memory for a fusion, and another rank finds a failure in this fusion. All ranks must take the
// failure into account when they plan the next fusion.
TEST(Ranks, AFailureInAFusionThatDoesNotFitIsToldLater) {
  Wish roomy{.forward = tiny_resnet(64)};
  roomy.fusions = {{.level = 2}};
  const std::size_t less = used_bytes(roomy);
  roomy.fusions = {{.level = 0}};
  const std::size_t more = used_bytes(roomy);
  ASSERT_LT(less, more);
  roomy.fusions = {{.level = 2}, {.level = 0}, {.level = 1}};
  roomy.executor.tune = true;
  Wish tight = roomy;
  tight.device_bytes = less + (more - less) / 2;
  roomy.script = [](Recorder& recorder) {
    recorder.refuses_launch = [](std::int64_t engine, const Operations& operations) {
      return engine == 1 && operations == Operations{CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR};
    };
  };
  const std::vector<Outcome> outcomes = on_ranks({tight, roomy});
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.error, "");
    EXPECT_NE(outcome.notes.find("not used, for want of memory: level 0, "), std::string::npos) << outcome.notes;
  }
  EXPECT_EQ(program_hash(outcomes[0].plan), program_hash(outcomes[1].plan));
  EXPECT_EQ(chosen_text(outcomes[0].plan), chosen_text(outcomes[1].plan));
}

// ---- Winners ----

/// The two candidates of each group.
const std::string kFirst = " 1[2=5]", kSecond = " 2[]";

/// Returns the winners of a rank on which the other candidate of each pair was faster.
std::string swapped(std::string text) {
  for (std::size_t at = 0; at < text.size(); ++at) {
    const bool is_first = text.compare(at, kFirst.size(), kFirst) == 0;
    if (!is_first && text.compare(at, kSecond.size(), kSecond) != 0) continue;
    text.replace(at, is_first ? kFirst.size() : kSecond.size(), is_first ? kSecond : kFirst);
  }
  return text;
}

/// Makes every second candidate a winner in the text in which rank 0 sends the winners that it timed.
void prefer_second(std::size_t rank, std::size_t number, std::string& text) {
  if (rank != 0 || number != 2) return;
  for (std::size_t at = text.find(kFirst); at != std::string::npos; at = text.find(kFirst, at)) {
    text.replace(at, kFirst.size(), kSecond);
  }
}

TEST(Ranks, RunTheEnginesThatRankZeroTimed) {
  Wish wish = small_wish();
  wish.executor.tune = true;
  const std::string timed = on_ranks({wish})[0].engines;
  EXPECT_NE(swapped(timed), timed);
  Wish other = wish;
  other.device = "else";
  const auto outcomes = on_ranks({wish, wish, other}, [](std::size_t rank, std::size_t number, std::string& text) {
    if (rank == 0 && number == 2) text = swapped(text);
  });
  EXPECT_EQ(outcomes[0].exchanges, 3U) << "known winners, plan, timed winners";
  EXPECT_EQ(outcomes[0].engines, swapped(timed));
  EXPECT_EQ(outcomes[1].engines, swapped(timed));
  EXPECT_EQ(outcomes[2].engines, timed) << "on another GPU a rank uses its own winners";
}

TEST(Ranks, RunTheEnginesThatRankZeroHasStored) {
  const std::filesystem::path full = empty_folder("hvd_ranks_full"), empty = empty_folder("hvd_ranks_empty");
  Wish wish = small_wish();
  const Outcome plain = on_ranks({wish})[0];
  std::vector<Winner> stored;
  for (const EngineCandidates& engine : plain.plan.engines) {
    stored.push_back({.signature = signature_hash(engine.signature), .choice = {.engine = 2}, .microseconds = 1});
  }
  save_winners((full / winners_file_name(plain.plan)).string(), plain.plan, {.list = stored, .why_not = {}});
  wish.executor.tune = true;
  Wish with = wish, without = wish;
  with.executor.winners_folder = full.string();
  without.executor.winners_folder = empty.string();
  for (const Outcome& outcome : on_ranks({with, without})) {
    EXPECT_EQ(outcome.engines, swapped(plain.engines));
    EXPECT_EQ(outcome.notes.find("to time them"), std::string::npos) << outcome.notes;
  }
  // Winners that rank 1 has stored must not be used if rank 0 has stored none.
  wish.executor.tune = without.executor.tune = with.executor.tune = false;
  for (const Outcome& outcome : on_ranks({without, with})) EXPECT_EQ(outcome.engines, plain.engines);
  for (const auto& folder : {full, empty}) std::filesystem::remove_all(folder);
}

TEST(Ranks, OfOneProcessTuneIntoOneFolder) {
  const std::filesystem::path folder = empty_folder("hvd_ranks_one_folder");
  Wish wish = small_wish();
  wish.executor.tune = true;
  wish.executor.winners_folder = folder.string();
  const std::vector<Outcome> outcomes = on_ranks(std::vector<Wish>(4, wish));
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.error, "");
    EXPECT_EQ(outcome.notes.find("not kept"), std::string::npos) << outcome.notes;
  }
  const Plan& plan = outcomes[0].plan;
  EXPECT_GE(load_winners((folder / winners_file_name(plan)).string(), plan).list.size(), plan.engines.size());
  const auto files = std::distance(std::filesystem::directory_iterator(folder), {});
  EXPECT_EQ(files, 1) << "no temporary file is left";
  std::filesystem::remove_all(folder);
}

TEST(Ranks, ARankThatCannotKeepItsWinnersStillRuns) {
  const std::filesystem::path folder = empty_folder("hvd_ranks_no_folder");
  Wish wish = small_wish();
  wish.executor.tune = true;
  wish.executor.winners_folder = folder.string();
  Wish without = wish;
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "a file") << "not a folder";
  without.executor.winners_folder = (folder / "a file" / "winners").string();
  const std::vector<Outcome> outcomes = on_ranks({wish, without});
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.error, "");
  EXPECT_NE(outcomes[1].notes.find("the fastest engines are not kept: cannot make the folder "), std::string::npos)
      << outcomes[1].notes;
  std::filesystem::remove_all(folder);
}

/// Returns a rank whose second candidates take 64 MiB of workspace, and the same rank without memory for them.
std::pair<Wish, Wish> roomy_and_tight() {
  Wish roomy = small_wish();
  roomy.script = [](Recorder& recorder) { recorder.second_workspace = std::size_t{64} << 20; };
  Wish tight = roomy;
  tight.device_bytes = used_bytes(roomy) + (std::size_t{1} << 20);
  roomy.executor.tune = tight.executor.tune = true;
  return {roomy, tight};
}

TEST(Ranks, StoredWinnersThatDoNotFitOnOneRankAreNotUsedThere) {
  const std::filesystem::path folder = empty_folder("hvd_ranks_wide");
  auto [roomy, tight] = roomy_and_tight();
  const Outcome plain = on_ranks({small_wish()})[0];
  std::vector<Winner> stored;
  for (const EngineCandidates& engine : plain.plan.engines) {
    stored.push_back({.signature = signature_hash(engine.signature), .choice = {.engine = 2}, .microseconds = 1});
  }
  save_winners((folder / winners_file_name(plain.plan)).string(), plain.plan, {.list = stored, .why_not = {}});
  roomy.executor.winners_folder = folder.string();
  const std::vector<Outcome> outcomes = on_ranks({roomy, tight});
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.error, "");
  EXPECT_EQ(outcomes[0].engines, swapped(plain.engines));
  EXPECT_EQ(outcomes[1].engines, plain.engines);
  EXPECT_NE(outcomes[1].notes.find("engines that were the fastest in an earlier run are not used, for want of memory"),
            std::string::npos)
      << outcomes[1].notes;
  std::filesystem::remove_all(folder);
}

TEST(Ranks, TimedWinnersThatDoNotFitOnOneRankAreNotUsedThere) {
  const auto [roomy, tight] = roomy_and_tight();
  const std::string plain = on_ranks({small_wish()})[0].engines;
  ASSERT_NE(plain.find(kFirst), std::string::npos);
  const std::vector<Outcome> outcomes = on_ranks({roomy, tight}, prefer_second);
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.error, "");
  EXPECT_EQ(outcomes[0].engines.find(kFirst), std::string::npos) << outcomes[0].engines;
  EXPECT_EQ(outcomes[1].engines, plain);
  EXPECT_NE(outcomes[1].notes.find("engines that were the fastest on rank 0 are not used, for want of memory"),
            std::string::npos)
      << outcomes[1].notes;
}

TEST(Ranks, AWinnerThatWasRefusedWhenItWasTimedIsNotUsedThere) {
  Wish runs = small_wish();
  runs.executor.tune = true;
  Wish refuses = runs;
  refuses.script = [](Recorder& recorder) {
    recorder.refuses_launch = [](std::int64_t engine, const Operations&) { return engine == 2; };
  };
  const std::vector<Outcome> outcomes = on_ranks({runs, refuses}, prefer_second);
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.error, "");
  EXPECT_NE(outcomes[0].engines.find(kSecond), std::string::npos) << outcomes[0].engines;
  EXPECT_EQ(outcomes[1].engines.find(kSecond), std::string::npos) << outcomes[1].engines;
}

// ---- Fusions ----

TEST(Ranks, FuseAsRankZeroMeasured) {
  Wish wish = small_wish();
  wish.fusions = {{.level = 2}, {.level = 0}};
  wish.executor.tune = true;
  for (const Outcome& outcome : on_ranks({wish, wish})) {
    EXPECT_NE(outcome.description.find("level 2"), std::string::npos) << outcome.description;
    EXPECT_EQ(outcome.exchanges, 7U) << "three for each fusion, and one for their times";
  }
  const auto outcomes = on_ranks({wish, wish}, [](std::size_t rank, std::size_t number, std::string& text) {
    if (rank == 0 && number == 6) text = ".faster";
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_NE(outcome.description.find("level 0"), std::string::npos) << outcome.description;
  }
}

// All ranks must use the fusion that rank 0 has stored, even ranks with another kind of GPU. No rank times anything.
TEST(Ranks, FuseAsRankZeroHasStored) {
  const std::filesystem::path full = empty_folder("hvd_ranks_fusion"), empty = empty_folder("hvd_ranks_no_fusion");
  Wish first = small_wish();
  first.device = "else";
  first.fusions = {{.level = 2}, {.level = 0}};
  const Plan plan = on_ranks({first})[0].plan;
  save_winners((full / winners_file_name(plan)).string(), plan,
               {.list = {}, .fusion = text(first.fusions[1]), .why_not = {}});
  Wish second = first;
  second.device = "fake";
  first.executor.winners_folder = full.string();
  second.executor.winners_folder = empty.string();
  for (const Outcome& outcome : on_ranks({first, second})) {
    EXPECT_NE(outcome.description.find("level 0"), std::string::npos) << outcome.description;
    EXPECT_EQ(outcome.exchanges, 4U) << "winners and plan of the first fusion, and of the stored one";
  }
  for (const auto& folder : {full, empty}) std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace hvd::models::cudnn::testing::ranks_test
