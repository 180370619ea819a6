// Tests repeated saves of a growing run. After each save the store must contain exactly the rows of one full save, even
// if another process, a signal or a full disk has disturbed an earlier save.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <fstream>
#include <thread>

#include "tests/bench/store/store_parts.h"

namespace hvd::bench::store_test {
namespace {

/// Returns `run` with `ranks` ranks and `samples` samples of each rank.
RunRecord grown(RunRecord run, int ranks, std::size_t samples) {
  run.world_size = run.allocation_size = ranks;
  run.measured_steps = static_cast<std::int64_t>(samples);
  run.ranks.resize(static_cast<std::size_t>(ranks));
  for (int r = 0; r < ranks; ++r) {
    RankRecord& rank = run.ranks[static_cast<std::size_t>(r)];
    rank.rank = r;
    rank.host = "n1";
    for (const StepSeries& series : kStepSeries) {
      std::vector<double>& values = rank.samples.*series.of_rank;
      values.clear();
      for (std::size_t i = 0; i < samples; ++i) values.push_back(0.25 * r + static_cast<double>(i));
    }
  }
  return run;
}

using StoreSaves = StoreTest;

TEST_F(StoreSaves, AfterEverySaveTheRowsAreThoseOfOneFullSave) {
  std::vector<RunRecord> runs{example(session_), example(session_)};
  ResultStore store(file_, session_, "x");
  const auto save = [&](const char* what) {
    for (const RunRecord& run : runs) store.save(run);
    EXPECT_EQ(difference(store.partial(), runs), "") << what;
  };
  save("first");
  save("again, unchanged");
  for (std::size_t samples = 1; samples < 3000; samples = 3 * samples + 1) {
    runs[0] = grown(runs[0], 3, samples);
    save("more samples of the first run only");
  }
  runs[1] = grown(runs[1], 2, 40);
  for (RankRecord& rank : runs[0].ranks) rank.samples.step.erase(rank.samples.step.begin());
  save("a first sample is discarded");
  runs[0].ranks[1].samples.loss[7] = -1;
  runs[0].step_replicates[0] = 0.75;
  save("other values, equally many");
  runs[1].ranks[0].samples.copy.clear();
  runs[1].efficiency_replicates.clear();
  save("series that the run no longer has");
  runs[0].ranks.pop_back();
  save("a rank that the run no longer has");
  runs[1].provenance.clear();
  runs[1].provenance["caution.late"] = {"text", false};
  runs[1].decomposition.pop_back();
  runs[1].operations.push_back({"conv2", "conv", "gemm", false, 0.5, 1, 2});
  runs[1].status = RunStatus::kComplete;
  runs[1].finished_utc = utc_now();
  runs[1].images_per_second.reset();
  save("everything but the samples");
  store.finish();
  EXPECT_EQ(difference(file_, runs), "");
}

/// Returns how many bytes this process has written (wchar in /proc/self/io).
std::uint64_t written_bytes() {
  std::ifstream file("/proc/self/io");
  std::string key;
  std::uint64_t value = 0;
  while (file >> key >> value && key != "wchar:") {
  }
  return value;
}

TEST_F(StoreSaves, UnchangedSamplesAreNotWritten) {
  RunRecord run = grown(example(session_), 4, 20000);  // 5 MB of samples
  ResultStore store(file_, session_, "x");
  store.save(run);
  run.checks = "gradients ok";
  const auto before = written_bytes();
  store.save(run);
  EXPECT_LT(written_bytes() - before, 200U << 10);
  EXPECT_EQ(difference(store.partial(), {run}), "");
}

TEST_F(StoreSaves, RowsThatAnotherProcessChangedOrDeletedAreWrittenAgain) {
  RunRecord run = grown(example(session_), 3, 500);
  ResultStore store(file_, session_, "x");
  store.save(run);
  std::size_t samples = 500;
  for (const char* const damage :
       {"DELETE FROM sample WHERE rank = 1", "DELETE FROM rank", "DELETE FROM provenance", "DELETE FROM run",
        "PRAGMA foreign_keys = ON; DELETE FROM run", "UPDATE sample SET data = zeroblob(length(data)) WHERE rank = 2",
        "UPDATE run SET model = 'other'", "UPDATE sample SET kind = 'foreign' WHERE kind = 'loss' AND rank = 0"}) {
    {
      Database other(store.partial(), Locking::kShared, false);
      other.run(damage);
      ASSERT_GT(other.integer("SELECT total_changes()"), 0) << damage;
    }
    store.save(run);
    EXPECT_EQ(difference(store.partial(), {run}), "") << damage;
    run = grown(run, 3, ++samples);
  }
}

TEST_F(StoreSaves, AKilledSaveLeavesTheStateBeforeOrAfterIt) {
  const RunRecord first = example(new_uuid());
  for (int round = 0; round < 8; ++round) {
    const std::string name = "a" + std::to_string(round) + ".db";
    std::array<int, 2> saved_once{};
    ASSERT_EQ(::pipe(saved_once.data()), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      try {
        ResultStore store(folder_ / name, first.session_uuid, "x");
        for (std::size_t samples = 600;; ++samples) {
          store.save(grown(first, 64, samples));
          if (::write(saved_once[1], "x", 1) != 1) break;
        }
      } catch (...) {
      }
      ::_exit(1);
    }
    char byte = 0;
    ::close(saved_once[1]);
    EXPECT_EQ(::read(saved_once[0], &byte, 1), 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(11 * round));
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ::close(saved_once[0]);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child ended by itself";
    const fs::path partial = folder_ / (name + "." + first.session_uuid + ".partial");
    const std::int64_t samples = count(partial, "SELECT measured_steps FROM run");
    EXPECT_EQ(difference(partial, {grown(first, 64, static_cast<std::size_t>(samples))}), "");
  }
}

TEST_F(StoreSaves, ManyRanksGetLargePages) {
  const auto add = [&](const char* name, int ranks) {
    const std::string its = new_uuid();
    ResultStore store(folder_ / name, its, "x");
    store.save(grown(example(its), ranks, 5));
    store.finish();
  };
  add("few.db", 63);
  add("many.db", 64);
  EXPECT_EQ(count(folder_ / "few.db", "PRAGMA page_size"), 4096);
  EXPECT_EQ(count(folder_ / "many.db", "PRAGMA page_size"), 16384);
  add("few.db", 64);
  add("many.db", 1);
  for (const char* const name : {"few.db", "many.db"}) {
    EXPECT_EQ(count(folder_ / name, "SELECT count(*) FROM run"), 2);
    Database database(folder_ / name, Locking::kShared, false);
    EXPECT_EQ(database.text("PRAGMA integrity_check"), "ok");
    EXPECT_NO_THROW(check_store_header(folder_ / name));
  }
}

}  // namespace
}  // namespace hvd::bench::store_test
