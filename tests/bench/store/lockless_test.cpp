// Tests the parts of lockless.h in one process. tests/scripts/test_no_locks.py tests the programs on a file system
// without locks.
#include "bench/store/lockless.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include "tests/bench/store/store_parts.h"

namespace hvd::bench::lockless_test {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using store_test::count;

std::string content(const fs::path& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

class Lockless : public store_test::StoreTest {
 protected:
  [[nodiscard]] std::size_t files_in_folder() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder_.path()), fs::directory_iterator()));
  }
  [[nodiscard]] std::string refused() const {
    return io_error([&] { const WriteLock lock(file_, milliseconds(30)); });
  }

  const fs::path lock_ = file_.string() + ".replacing";
};

TEST_F(Lockless, AFileSystemWithLocksHasNoFault) {
  publish_example(file_);
  EXPECT_EQ(lock_fault(file_), "");
  EXPECT_EQ(ResultStore(file_, session_, "x").note(), "");
}

TEST_F(Lockless, OneWriterAtATime) {
  std::optional<WriteLock> first(std::in_place, file_, milliseconds(0));
  first->require_held();
  const std::string text = refused();
  EXPECT_NE(text.find(lock_.string() + ": another program adds runs to " + file_.string()), std::string::npos) << text;
  EXPECT_NE(text.find("remove a.db.replacing if no program writes to the store"), std::string::npos) << text;
  first.reset();
  WriteLock(file_, milliseconds(0)).require_held();
  EXPECT_EQ(files_in_folder(), 0U);
}

TEST_F(Lockless, TheFileOfAKilledWriterStays) {
  std::ofstream(lock_) << "half";
  EXPECT_NE(refused().find("or was killed"), std::string::npos);
  EXPECT_EQ(content(lock_), "half");
}

TEST_F(Lockless, AStoreIsReplacedWhole) {
  publish_example(file_);
  fs::permissions(file_, fs::perms(0640));
  std::ofstream(lock_.string() + "-journal") << "a stranger's";
  {
    const WriteLock lock(file_, milliseconds(0));
    replace_store(file_, lock, session_, [&](const fs::path& copy) {
      Database(copy, Locking::kExclusive, false).run("PRAGMA journal_mode = MEMORY; DELETE FROM provenance");
      EXPECT_GT(count(file_, "SELECT count(*) FROM provenance"), 0);
    });
    EXPECT_EQ(count(file_, "SELECT count(*) FROM provenance"), 0);
    EXPECT_NE(refused(), "") << "other writers wait until the lock is destroyed";
  }
  EXPECT_EQ(fs::status(file_).permissions(), fs::perms(0640));
  EXPECT_EQ(files_in_folder(), 1U);
}

TEST_F(Lockless, AStoreThatChangesMeanwhileStays) {
  publish_example(file_);
  const std::string journal = file_.string() + "-journal";
  const auto change_store = [&] { Database(file_, Locking::kExclusive, false).run("PRAGMA user_version = 1"); };
  const auto begin_journal = [&] { std::ofstream(journal) << "x"; };
  const auto remove_lock = [&] { fs::remove(lock_); };
  for (const std::function<void()>& meddle : {std::function<void()>(change_store), std::function<void()>(begin_journal),
                                              std::function<void()>(remove_lock)}) {
    std::string before;
    const std::string text = io_error([&] {
      const WriteLock lock(file_, milliseconds(0));
      replace_store(file_, lock, session_, [&](const fs::path& copy) {
        Database(copy, Locking::kExclusive, false).run("PRAGMA journal_mode = MEMORY; DELETE FROM provenance");
        meddle();
        before = content(file_);
      });
    });
    EXPECT_EQ(content(file_), before) << text;
    fs::remove(journal);
    EXPECT_EQ(files_in_folder(), 1U) << text;
  }
}

TEST_F(Lockless, AfterItsLockWasRemovedAWriterTouchesNeitherTheStoreNorTheNextWritersCopy) {
  publish_example(file_);
  std::optional<WriteLock> first(std::in_place, file_, milliseconds(0));
  std::optional<WriteLock> next;
  std::string before;
  const std::string text = io_error([&] {
    replace_store(file_, *first, session_, [&](const fs::path&) {
      fs::remove(lock_);
      next.emplace(file_, milliseconds(0));
      next->copy_from(file_);
      before = content(lock_);
    });
  });
  EXPECT_NE(text.find("somebody removed it while this program used it"), std::string::npos) << text;
  EXPECT_NE(io_error([&] { first->require_held(); }), "");
  first.reset();
  EXPECT_EQ(content(lock_), before);
  next->require_held();
  EXPECT_EQ(content(file_), before);
  EXPECT_EQ(files_in_folder(), 2U);
}

TEST_F(Lockless, ADiskThatIsFullLeavesTheStore) {
  publish_example(file_);
  const std::string before = content(file_);
  EXPECT_EXIT(
      {
        ::signal(SIGXFSZ, SIG_IGN);
        rlimit limit{};
        limit.rlim_cur = limit.rlim_max = 4096;
        ::setrlimit(RLIMIT_FSIZE, &limit);
        const std::string text = io_error([&] {
          const WriteLock lock(file_, milliseconds(0));
          replace_store(file_, lock, session_, [](const fs::path&) {});
        });
        ::_exit(text.find("writing failed") == std::string::npos ? 1 : 0);
      },
      testing::ExitedWithCode(0), "");
  EXPECT_EQ(content(file_), before);
  EXPECT_EQ(files_in_folder(), 1U);
}

}  // namespace
}  // namespace hvd::bench::lockless_test
