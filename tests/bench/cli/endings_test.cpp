// Tests how a session ends when something goes wrong: a save fails and is repeated, another thread closes the store,
// a signal is handled in time or too late, or a signal is repeated.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <future>
#include <memory>
#include <thread>

#include "bench/cli/process_end.h"
#include "bench/cli/record_keeper.h"
#include "bench/cli/signal_watch.h"
#include "bench/store/sqlite_handle.h"
#include "engine/base/error.h"
#include "tests/base/patience.h"
#include "tests/bench/scratch.h"

namespace hvd::bench::endings_test {
namespace {

using std::chrono::milliseconds;

class Endings : public testing::Test {
 protected:
  std::unique_ptr<ResultStore> store() const {
    return std::make_unique<ResultStore>(folder_ / "a.db", session_, "hvd_bench");
  }
  RunRecord run(std::size_t samples) const {
    RunRecord record;
    record.uuid = "run";
    record.session_uuid = session_;
    record.started_utc = utc_now();
    record.model = "vgg16";
    record.device = "cpu";
    record.schedule = "static";
    record.ranks.resize(1);
    record.ranks[0].samples.step.assign(samples, 0.5);
    return record;
  }
  std::string stored(const std::string& sql) const {
    Database database(folder_ / "a.db", Locking::kShared, false);
    return database.text(sql);
  }

  const test::Folder folder_;
  std::string session_ = new_uuid();
};

TEST_F(Endings, ASaveThatFailsIsSaidOnceAndMadeGood) {
  int warnings = 0;
  RecordKeeper keeper(store(), [&](std::string_view) { ++warnings; });
  keeper.save(run(3));
  {
    const test::FileSizeLimit limit(rlim_t{128} << 10);
    keeper.save(run(100000));
    keeper.save(run(100001));
    EXPECT_EQ(warnings, 1);
  }
  keeper.finish();
  EXPECT_EQ(stored("SELECT count FROM sample"), "100001");
}

TEST_F(Endings, ARunThatCouldNotBeSavedIsSavedWithTheNextOne) {
  RecordKeeper keeper(store(), [](std::string_view) {});
  RunRecord other = run(2);
  other.uuid = "other";
  keeper.save(run(3));
  keeper.save(other);
  {
    const test::FileSizeLimit limit(rlim_t{128} << 10);
    keeper.save(run(100000));
    other.ranks[0].samples.step.assign(90000, 0.5);
    keeper.save(other);
  }
  keeper.save(run(4));  // replaces the save that failed
  {
    Database partial(keeper.partial(), Locking::kShared, false);
    EXPECT_EQ(partial.text("SELECT group_concat(run_uuid || count) FROM (SELECT * FROM sample ORDER BY run_uuid)"),
              "other90000,run4");
  }
  keeper.finish();
  EXPECT_EQ(stored("SELECT group_concat(run_uuid || count) FROM (SELECT * FROM sample ORDER BY run_uuid)"),
            "other90000,run4");
}

TEST_F(Endings, WhatWasSavedBeforeTheDiskFilledIsPublished) {
  RecordKeeper keeper(store(), [](std::string_view) {});
  keeper.save(run(3));
  const test::FileSizeLimit limit(rlim_t{128} << 10);
  keeper.save(run(100000));
  EXPECT_THROW(keeper.finish(), Error);
  EXPECT_EQ(stored("SELECT count FROM sample"), "3");
  EXPECT_EQ(stored("SELECT status FROM run"), "incomplete");
  EXPECT_NE(stored("SELECT status_reason FROM run").find("could not be saved"), std::string::npos);
}

TEST_F(Endings, TheFirstSaveMustSucceed) {
  RecordKeeper keeper(store(), [](std::string_view) {});
  const test::FileSizeLimit limit(rlim_t{128} << 10);
  EXPECT_THROW(keeper.save(run(100000)), Error);
}

TEST_F(Endings, ClosedByAnotherThread) {
  RecordKeeper keeper(store(), [](std::string_view) {});
  keeper.save(run(3));
  std::string problem = "not called";
  std::thread([&] { problem = keeper.close_now("SIGTERM", Deadline::after(milliseconds(500))); }).join();
  EXPECT_EQ(problem, "");
  EXPECT_EQ(stored("SELECT status || ' ' || status_reason FROM run"), "incomplete SIGTERM");
  keeper.save(run(4));  // has no effect, because the store is closed
  keeper.finish();
  EXPECT_EQ(stored("SELECT count FROM sample"), "3");
}

TEST_F(Endings, ALockedTargetCannotHoldUpTheForcedEnd) {
  {
    RecordKeeper first(store(), [](std::string_view) {});
    first.save(run(1));
    first.finish();
  }
  session_ = new_uuid();
  RecordKeeper keeper(store(), [](std::string_view) {});
  RunRecord second = run(2);
  second.uuid = "second";
  keeper.save(second);
  Database other(folder_ / "a.db", Locking::kShared, false);
  other.run("BEGIN EXCLUSIVE");
  const auto begin = Clock::now();
  const std::string line = keeper.close_now("SIGTERM", Deadline::after(milliseconds(200)));
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(25)) << "finish() waits 30 s for a lock";
  EXPECT_NE(line.find(".partial"), std::string::npos) << line;
  other.run("ROLLBACK");
}

TEST_F(Endings, WithoutAStore) {
  RecordKeeper keeper(nullptr, [](std::string_view) {});
  keeper.save(run(1));
  keeper.finish();
  EXPECT_EQ(keeper.file(), "");
  EXPECT_EQ(keeper.close_now("x", Deadline::after(milliseconds(1))), "");
}

TEST(MpiDeadline, EndsAWaitThatTakesTooLong) {
  std::promise<void> overdue;
  MpiDeadline watch([&] { overdue.set_value(); });
  auto passed = overdue.get_future();
  watch.arm(milliseconds(1500));
  watch.disarm();
  EXPECT_EQ(passed.wait_for(milliseconds(1700)), std::future_status::timeout) << "disarmed in time";
  watch.arm(milliseconds(60000));
  watch.arm(milliseconds(20));
  EXPECT_EQ(passed.wait_for(test::kAtOnce), std::future_status::ready) << "the last deadline counts";
}

/// A SignalWatch, and the reason that the SignalWatch reports if a signal is not handled in time.
struct Watched {
  explicit Watched(milliseconds grace)
      : watch({[grace](int) { return grace; }, [this](const std::string& reason) { overdue.set_value(reason); }}) {}
  std::promise<std::string> overdue;
  SignalWatch watch;
};

class Signals : public testing::Test {
 protected:
  static void SetUpTestSuite() { SignalWatch::block(); }
};

TEST_F(Signals, NothingHappensWithoutOne) {
  const Watched watched(milliseconds(1));
  EXPECT_FALSE(watched.watch.wait(milliseconds(20)));
  EXPECT_EQ(watched.watch.requested(), "");
}

TEST_F(Signals, HeededInTime) {
  Watched watched(milliseconds(60000));
  auto overdue = watched.overdue.get_future();
  ::kill(::getpid(), SIGUSR1);
  EXPECT_TRUE(watched.watch.wait(test::kAtOnce));
  EXPECT_EQ(watched.watch.requested(), "SIGUSR1");
  EXPECT_EQ(overdue.wait_for(milliseconds(20)), std::future_status::timeout);
}

TEST_F(Signals, OverdueAfterTheGrace) {
  Watched watched(milliseconds(30));
  auto overdue = watched.overdue.get_future();
  ::kill(::getpid(), SIGTERM);
  ASSERT_EQ(overdue.wait_for(test::kAtOnce), std::future_status::ready);
  EXPECT_EQ(overdue.get(), "SIGTERM");
}

TEST_F(Signals, AllThatSchedulersAndTerminalsSend) {
  for (const auto& [number, name] : {std::pair{SIGHUP, "SIGHUP"}, {SIGUSR2, "SIGUSR2"}, {SIGXCPU, "SIGXCPU"}}) {
    Watched watched(milliseconds(60000));
    ::kill(::getpid(), number);
    EXPECT_TRUE(watched.watch.wait(test::kAtOnce));
    EXPECT_EQ(watched.watch.requested(), name);
  }
}

// nohup starts programs with SIGHUP ignored, and a shell starts background jobs with SIGINT ignored.
TEST_F(Signals, WhatTheParentIgnoredIsIgnored) {
  std::signal(SIGHUP, SIG_IGN);
  {
    const Watched watched(milliseconds(60000));
    ::kill(::getpid(), SIGHUP);
    EXPECT_FALSE(watched.watch.wait(milliseconds(50)));
  }
  std::signal(SIGHUP, SIG_IGN);  // drops the pending signal
  std::signal(SIGHUP, SIG_DFL);
}

TEST_F(Signals, ASecondOneIsImpatient) {
  Watched watched(milliseconds(60000));
  auto overdue = watched.overdue.get_future();
  ::kill(::getpid(), SIGINT);
  ASSERT_TRUE(watched.watch.wait(test::kAtOnce));
  ::kill(::getpid(), SIGINT);
  ASSERT_EQ(overdue.wait_for(test::kAtOnce), std::future_status::ready);
  EXPECT_EQ(overdue.get(), "SIGINT, twice");
}

TEST_F(Signals, AnAnnouncementAndThenTheSignalAreNotTwo) {
  Watched watched(milliseconds(60000));
  auto overdue = watched.overdue.get_future();
  ::kill(::getpid(), SIGUSR1);
  ASSERT_TRUE(watched.watch.wait(test::kAtOnce));
  ::kill(::getpid(), SIGTERM);
  EXPECT_EQ(overdue.wait_for(milliseconds(50)), std::future_status::timeout);
}

}  // namespace
}  // namespace hvd::bench::endings_test
