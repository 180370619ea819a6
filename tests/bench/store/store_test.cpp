// Tests the store. Saved runs can be read back, and published runs are merged. After every fault the target store
// must be unchanged, and the session's own partial file must contain the session's rows.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "bench/coll/problem.h"
#include "bench/measure/decomposition.h"
#include "bench/store/result_store.h"
#include "bench/store/sqlite_handle.h"
#include "engine/base/error.h"
#include "tests/bench/store/store_parts.h"

namespace hvd::bench::store_test {
namespace {

using Store = StoreTest;

TEST_F(Store, SavesWhatItWasGivenAndPublishesByRename) {
  const RunRecord run = example(session_);
  {
    ResultStore store(file_, session_, "hvd_bench --model vgg16");
    store.save(run);
    EXPECT_FALSE(fs::exists(file_));
    EXPECT_EQ(store.partial(), folder_ / ("a.db." + session_ + ".partial"));
    store.finish();
  }
  EXPECT_EQ(folder_.files(), 1U);
  Database database(file_, Locking::kShared, false);
  EXPECT_EQ(database.text("SELECT command_line FROM session"), "hvd_bench --model vgg16");
  EXPECT_EQ(database.text("SELECT model || batch_size || phase || status || origin FROM run"),
            "vgg164fullrunningmeasured");
  EXPECT_EQ(database.text("SELECT images_per_second FROM run"), "120.5");
  EXPECT_EQ(database.text("SELECT finished_utc IS NULL AND step_seconds IS NULL FROM run"), "1");
  EXPECT_EQ(database.text("SELECT value FROM provenance WHERE key = 'cpu.model'"), "it's \"quoted\"");
  EXPECT_EQ(database.integer("SELECT count(*) FROM sample"), 6);
  EXPECT_EQ(database.text("SELECT hex(data) FROM sample WHERE rank = 1 AND kind = 'step_seconds'"),
            "000000000000E03F000000000000D03F000000000000C03F");
  EXPECT_EQ(database.text("SELECT group_concat(rank || kind || count || hex(substr(data, 1, 8))) FROM"
                          " (SELECT * FROM sample WHERE kind GLOB '*_replicates' ORDER BY kind)"),
            "0efficiency_replicates200000000000000EC3F,0step_seconds_replicates200000000000000D03F");
  EXPECT_EQ(database.text("SELECT group_concat(component) FROM decomposition WHERE low IS NULL"), "residual");
  EXPECT_EQ(database.integer("SELECT library FROM operation"), 1);
  EXPECT_EQ(integrity(file_), "ok");
  EXPECT_EQ(database.text("PRAGMA journal_mode"), "delete");
}

TEST_F(Store, WrittenRowsKeepTheRulesOfTheSchemaAndARowThatBreaksOneIsStored) {
  RunRecord run = example(session_);
  ResultStore store(file_, session_, "x");
  for (const Estimate& step : {Estimate{0.25, 0.2, 0.3}, Estimate{0.25, kNoInterval, kNoInterval}}) {
    run.uuid = new_uuid();
    run.step_seconds = step;
    run.final_loss = HUGE_VAL;
    store.save(run);
  }
  EXPECT_EQ(integrity(store.partial()), "ok");
  run.nodes = 0;
  store.save(run);
  EXPECT_NE(integrity(store.partial()).find("CHECK"), std::string::npos);
  publish_example(file_);
  store.finish();
  EXPECT_EQ(count(file_, "SELECT count(*) FROM run WHERE nodes = 0"), 1);
}

TEST_F(Store, WhatOnlyAGpuHasIsStoredOfGpusAndOfReplaysOnThem) {
  RunRecord run = example(session_);
  for (RankRecord& rank : run.ranks) rank.samples.launch = {0.1, 0.1, 0.1};
  const auto stored = [&] {
    ResultStore store(folder_ / (new_uuid() + ".db"), session_, "x");
    store.save(run);
    return count(store.partial(), "SELECT count(*) FROM sample WHERE kind = 'launch_seconds'");
  };
  EXPECT_EQ(stored(), 0);
  run.device = "replay";
  EXPECT_EQ(stored(), 0);
  run.provenance["gpu.name"] = {"NVIDIA H200", true};
  EXPECT_EQ(stored(), 2);
  run.device = "cuda";
  EXPECT_EQ(stored(), 2);
}

TEST_F(Store, SavingAgainReplacesTheRun) {
  RunRecord run = example(session_);
  ResultStore store(file_, session_, "x");
  store.save(run);
  run.status = RunStatus::kComplete;
  run.ranks[0].samples.step.push_back(0.0625);
  run.operations.clear();
  store.save(run);
  store.finish();
  EXPECT_EQ(count(file_, "SELECT count(*) FROM run WHERE status = 'complete'"), 1);
  EXPECT_EQ(count(file_, "SELECT count FROM sample WHERE rank = 0 AND kind = 'step_seconds'"), 4);
  EXPECT_EQ(count(file_, "SELECT count(*) FROM operation"), 0);
}

TEST_F(Store, TwoSessionsOfOneFileAreMerged) {
  const std::string first = new_uuid(), second = new_uuid();
  ResultStore a(file_, first, "first");
  ResultStore b(file_, second, "second");  // both sessions open the store before the target exists
  a.save(example(first));
  b.save(example(second));
  a.finish();
  b.finish();
  EXPECT_EQ(folder_.files(), 1U);
  EXPECT_EQ(count(file_, "SELECT count(*) FROM session"), 2);
  EXPECT_EQ(count(file_, "SELECT count(*) FROM run"), 2);
  EXPECT_EQ(count(file_, "SELECT count(*) FROM sample"), 12);
}

TEST_F(Store, AStoreFromBeforeTheShardedScheduleTakesItsRuns) {
  RunRecord run = example(session_);
  run.schedule = "sharded";
  publish_example(file_);
  Database(file_, Locking::kShared, false)
      .run(
          "PRAGMA writable_schema = ON;"
          "UPDATE sqlite_schema SET sql = replace(sql, '''sharded'', ', '') WHERE name = 'run';");
  ResultStore store(file_, session_, "hvd_bench --schedule sharded");
  store.save(run);
  store.finish();
  EXPECT_EQ(count(file_, "SELECT count(*) FROM run WHERE schedule = 'sharded'"), 1);
}

TEST_F(Store, AnEmptyFileBecomesAStore) {  // `mktemp` leaves an empty file
  std::ofstream(file_).close();
  publish_example(file_);
  EXPECT_EQ(read_store_header(file_).kind, StoreHeader::Kind::kOurs);
  EXPECT_EQ(count(file_, "SELECT count(*) FROM run"), 1);
}

TEST_F(Store, ANameThatLooksLikeAnUri) {
  publish_example(folder_ / "file:a?mode=ro#1%20.db");
  EXPECT_TRUE(fs::exists(folder_ / "file:a?mode=ro#1%20.db"));
}

TEST_F(Store, ANameWhoseBytesAreNotUtf8TakesRunsToo) {
  const fs::path file = folder_ / "c\xff.db";
  for (int session = 0; session < 2; ++session) publish_example(file);
  EXPECT_EQ(folder_.files(), 1U);
  EXPECT_EQ(count(file, "SELECT count(*) FROM run"), 2);
}

TEST_F(Store, NothingSavedLeavesNothingBehind) {
  {
    ResultStore store(file_, new_uuid(), "x");
    EXPECT_EQ(folder_.files(), 0U) << "a job may be killed here";
    store.mark_incomplete("SIGTERM");
    store.finish();
  }
  EXPECT_EQ(folder_.files(), 0U);
}

TEST_F(Store, AnUnfinishedSessionLeavesItsPartial) {
  fs::path partial;
  {
    ResultStore store(file_, session_, "x");
    partial = store.partial();
    store.save(example(session_));
  }
  EXPECT_EQ(count(partial, "SELECT count(*) FROM run WHERE status = 'running'"), 1);
}

TEST_F(Store, MarksWhatStillRunsIncomplete) {
  ResultStore store(file_, session_, "x");
  RunRecord done = example(session_);
  done.status = RunStatus::kComplete;
  store.save(done);
  store.save(example(session_));
  store.mark_incomplete("SIGTERM");
  store.finish();
  Database database(file_, Locking::kShared, false);
  EXPECT_EQ(database.text("SELECT group_concat(status || status_reason) FROM (SELECT * FROM run ORDER BY status)"),
            "complete,incompleteSIGTERM");
  EXPECT_EQ(database.integer("SELECT count(*) FROM run WHERE status = 'incomplete' AND finished_utc IS NOT NULL"), 1);
}

TEST_F(Store, RefusesWhatIsNotAStore) {
  const auto open = [&](const char* name) { return io_error([&] { ResultStore(folder_ / name, new_uuid(), "x"); }); };
  std::ofstream(folder_ / "notes.txt") << "nothing like a database";
  EXPECT_NE(open("notes.txt").find("notes.txt: is not a SQLite database"), std::string::npos);
  {
    Database foreign(folder_ / "foreign.db", Locking::kShared, true);
    foreign.run("PRAGMA application_id = 77; CREATE TABLE t (x);");
  }
  EXPECT_NE(open("foreign.db").find("another program's database"), std::string::npos);
  for (const int version : {0, 99}) {
    fs::remove(folder_ / "other.db");
    Database other(folder_ / "other.db", Locking::kShared, true);
    other.run("PRAGMA application_id = 1752589410; PRAGMA user_version = " + std::to_string(version) +
              "; CREATE TABLE t (x);");
    const std::string text = open("other.db");
    EXPECT_NE(text.find("schema version " + std::to_string(version)), std::string::npos) << text;
    EXPECT_NE(text.find("this program writes versions 1 and 2"), std::string::npos) << text;
  }
  EXPECT_NE(open(".").find("is a directory"), std::string::npos);
  EXPECT_NE(open("no/such/place.db").find("there is no directory"), std::string::npos);
  EXPECT_EQ(folder_.files(), 3U) << "no partial may stay behind";
}

// Readers refuse such a store, because SQLite makes files beside it when it reads it.
TEST_F(Store, RefusesAStoreThatAViewerLeftInWalMode) {
  publish_example(file_);
  ResultStore early(file_, session_, "x");
  early.save(example(session_));
  Database(file_, Locking::kShared, false).run("PRAGMA journal_mode = WAL");
  const std::string remedy = "journal mode to WAL; close that program, then run: sqlite3 " + file_.string() +
                             " 'PRAGMA journal_mode = DELETE'";
  EXPECT_NE(io_error([&] { ResultStore(file_, new_uuid(), "x"); }).find(remedy), std::string::npos);
  EXPECT_NE(io_error([&] { early.finish(); }).find("results are kept in"), std::string::npos);
  Database(file_, Locking::kShared, false).run("PRAGMA journal_mode = DELETE");
  early.finish();
  EXPECT_EQ(count(file_, "SELECT count(*) FROM run"), 2);
}

TEST_F(Store, RefusesAStoreThatIsCutOff) {
  publish_example(file_);
  EXPECT_NO_THROW(ResultStore(file_, new_uuid(), "x"));
  const std::uintmax_t whole = fs::file_size(file_);
  fs::resize_file(file_, whole - 1);
  const std::string text = io_error([&] { ResultStore(file_, new_uuid(), "x"); });
  EXPECT_NE(
      text.find("a.db: is cut off after " + std::to_string(whole - 1) + " of " + std::to_string(whole) + " bytes"),
      std::string::npos)
      << text;
  EXPECT_EQ(fs::file_size(file_), whole - 1);
}

TEST_F(Store, RefusesADirectoryThatCannotBeWritten) {
  if (::geteuid() == 0) {
    // Root may write to every folder but /proc, where the kernel refuses new files.
    const std::string text = io_error([] { ResultStore("/proc/a.db", new_uuid(), "x"); });
    EXPECT_NE(text.find("/proc"), std::string::npos);
    return;
  }
  ::chmod(folder_.path().c_str(), 0500);
  const std::string text = io_error([&] { ResultStore(file_, new_uuid(), "x"); });
  ::chmod(folder_.path().c_str(), 0700);
  EXPECT_NE(text.find("cannot be written"), std::string::npos);
}

TEST_F(Store, ALockedTargetKeepsThePartialAndSaysSo) {
  publish_example(file_);
  ResultStore store(file_, session_, "x");
  store.save(example(session_));
  {
    Database other(file_, Locking::kShared, false);
    other.run("BEGIN EXCLUSIVE");
    const std::string text = io_error([&] { store.finish(std::chrono::milliseconds(50)); });
    EXPECT_NE(text.find("lock"), std::string::npos) << text;
    EXPECT_NE(text.find(store.partial().string()), std::string::npos) << text;
    other.run("ROLLBACK");
  }
  EXPECT_EQ(count(store.partial(), "SELECT count(*) FROM run"), 1);
  store.finish();  // the other connection has released its lock
  EXPECT_EQ(count(file_, "SELECT count(*) FROM run"), 2);
  EXPECT_FALSE(fs::exists(store.partial()));
}

TEST_F(Store, ATargetReplacedByAnotherProgramsFileIsLeftAlone) {
  ResultStore store(file_, session_, "x");
  store.save(example(session_));
  std::ofstream(file_) << "somebody else's";
  const std::string text = io_error([&] { store.finish(); });
  EXPECT_NE(text.find("is not a SQLite database"), std::string::npos);
  EXPECT_TRUE(fs::exists(store.partial()));
  EXPECT_EQ(fs::file_size(file_), 15U);
}

TEST_F(Store, ASaveThatDoesNotFitLosesNothingAndCanBeRepeated) {
  RunRecord run = example(session_);
  ResultStore store(file_, session_, "x");
  store.save(run);
  run.ranks[0].samples.step.assign(200000, 0.5);
  {
    const test::FileSizeLimit limit(rlim_t{256} << 10);
    const std::string text = io_error([&] { store.save(run); });
    EXPECT_NE(text.find(".partial: writing failed"), std::string::npos) << text;
    EXPECT_NE(text.find("ulimit -f"), std::string::npos) << text;
    EXPECT_EQ(count(store.partial(), "SELECT count FROM sample WHERE rank = 0 AND kind = 'step_seconds'"), 3);
  }
  store.save(run);
  store.finish();
  EXPECT_EQ(difference(file_, {run}), "");
}

TEST_F(Store, AFullDiskIsSaidPlainly) {
  if (::mount("none", folder_.path().c_str(), "tmpfs", 0, "size=256k") != 0) GTEST_SKIP() << "needs the right to mount";
  std::string text;
  {
    RunRecord run = example(session_);
    ResultStore store(file_, session_, "x");
    store.save(run);
    run.ranks[0].samples.step.assign(200000, 0.5);
    text = io_error([&] { store.save(run); });
    EXPECT_EQ(count(store.partial(), "SELECT count(*) FROM run"), 1);
  }
  ::umount(folder_.path().c_str());
  EXPECT_NE(text.find("the disk is full; free space"), std::string::npos) << text;
}

TEST_F(Store, IdentitiesAndTimes) {
  const std::string uuid = new_uuid();
  ASSERT_EQ(uuid.size(), 36U);
  EXPECT_EQ(uuid[14], '4');
  EXPECT_NE(std::string("89ab").find(uuid[19]), std::string::npos);
  EXPECT_NE(new_uuid(), new_uuid());
  const std::string now = utc_now();
  ASSERT_EQ(now.size(), 24U);
  EXPECT_EQ(now[10], 'T');
  EXPECT_EQ(now.substr(19, 1), ".");
  EXPECT_EQ(now.back(), 'Z');
}

// results/names.json carries names and limits of the program to scripts/hvdb.

std::string quoted(std::string_view name) { return fmt::format("\"{}\"", name); }

TEST(Names, TheCommittedFileHasTheProgramsNamesAndLimits) {
  std::vector<std::string> components, operations, types, reductions;
  for (const auto& [component, title] : kComponents) {
    components.push_back(fmt::format("    {}: {}", quoted(component), quoted(title)));
  }
  for (const MeasuredCollective collective : coll::kMeasuredCollectives) {
    operations.push_back(quoted(coll::name(collective)));
  }
  for (const auto& [type, title] : coll::kTypeNames) types.push_back(quoted(title));
  for (const auto& [op, title] : coll::kOpNames) reductions.push_back(quoted(title));
  const std::string expected = fmt::format(
      "{{\n  \"components\": {{\n{}\n  }},\n  \"operations\": [{}],\n  \"types\": [{}],\n  \"reductions\": [{}],\n"
      "  \"min_to_believe\": {},\n  \"widest_efficiency\": {},\n"
      "  \"not_resolved\": {{\"without_interval\": \"{}\", \"wide\": \"{}\"}}\n}}\n",
      fmt::join(components, ",\n"), fmt::join(operations, ", "), fmt::join(types, ", "), fmt::join(reductions, ", "),
      kMinToBelieve, kWidestEfficiency, kNoIntervalText, kWideText);
  std::ostringstream committed;
  committed << std::ifstream(HVD_RECORDED "/../names.json").rdbuf();
  EXPECT_EQ(committed.str(), expected) << "write this to results/names.json";
}

}  // namespace

}  // namespace hvd::bench::store_test
