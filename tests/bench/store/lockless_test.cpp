// Tests the parts of lockless.h in one process. tests/scripts/test_no_locks.py tests the programs on a file system
// without locks.
#include "bench/store/lockless.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
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
  /// Holds the lock in a process that ends without releasing it.
  void leave_lock_of_killed_process() const {
    const pid_t child = ::fork();
    if (child == 0) {
      const WriteLock lock(file_, milliseconds(0));
      ::_exit(0);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0);
    ASSERT_TRUE(fs::exists(lock_));
  }
  [[nodiscard]] std::size_t files_in_folder() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder_.path()), fs::directory_iterator()));
  }
  [[nodiscard]] std::string refused() const {
    return io_error([&] { const WriteLock lock(file_, milliseconds(30)); });
  }

  const fs::path lock_ = file_.string() + ".write-lock";
};

TEST_F(Lockless, AFileSystemWithLocksHasNoFault) {
  publish_example(file_);
  EXPECT_EQ(lock_fault(file_), "");
  EXPECT_EQ(ResultStore(file_, session_, "x").note(), "");
}

TEST_F(Lockless, OneWriterAtATime) {
  std::optional<WriteLock> first(std::in_place, file_, milliseconds(0));
  EXPECT_TRUE(first->is_held());
  const std::string text = refused();
  EXPECT_NE(text.find(lock_.string()), std::string::npos) << text;
  EXPECT_NE(text.find("process " + std::to_string(::getpid()) + " on "), std::string::npos) << text;
  EXPECT_NE(text.find("remove the file if that process has ended"), std::string::npos) << text;
  first.reset();
  EXPECT_TRUE(WriteLock(file_, milliseconds(0)).is_held());
  EXPECT_EQ(files_in_folder(), 0U);
}

TEST_F(Lockless, TheLockOfAKilledProcessIsRemoved) {
  leave_lock_of_killed_process();
  EXPECT_TRUE(WriteLock(file_, milliseconds(0)).is_held());
  EXPECT_EQ(files_in_folder(), 0U);
}

TEST_F(Lockless, TheLockOfAnotherHostStays) {
  leave_lock_of_killed_process();
  std::string text = content(lock_);
  const std::size_t boot = text.find(' ', text.find(' ') + 1) + 1;
  text[boot] = text[boot] == '0' ? '1' : '0';
  for (const std::string& other : {text, std::string("nonsense"), std::string()}) {
    std::ofstream(lock_) << other;
    EXPECT_NE(refused().find("holds this lock"), std::string::npos) << other;
    EXPECT_EQ(content(lock_), other);
  }
}

TEST_F(Lockless, AStoreIsReplacedWhole) {
  publish_example(file_);
  std::ofstream(file_.string() + ".killed.replacing") << "half";
  const WriteLock lock(file_, milliseconds(0));
  replace_store(file_, lock, session_, [&](const fs::path& copy) {
    Database(copy, Locking::kExclusive, false).run("DELETE FROM provenance");
    EXPECT_GT(count(file_, "SELECT count(*) FROM provenance"), 0);
  });
  EXPECT_EQ(count(file_, "SELECT count(*) FROM provenance"), 0);
  EXPECT_EQ(files_in_folder(), 2U) << "the store and the lock file";
}

TEST_F(Lockless, AStoreThatChangesMeanwhileStays) {
  publish_example(file_);
  const std::string journal = file_.string() + "-journal";
  const auto change_store = [&] { Database(file_, Locking::kExclusive, false).run("PRAGMA user_version = 1"); };
  const auto begin_journal = [&] { std::ofstream(journal) << "x"; };
  const auto remove_lock = [&] { fs::remove(lock_); };
  for (const std::function<void()>& meddle : {std::function<void()>(change_store), std::function<void()>(begin_journal),
                                              std::function<void()>(remove_lock)}) {
    const WriteLock lock(file_, milliseconds(0));
    std::string before;
    const std::string text = io_error([&] {
      replace_store(file_, lock, session_, [&](const fs::path& copy) {
        Database(copy, Locking::kExclusive, false).run("DELETE FROM provenance");
        meddle();
        before = content(file_);
      });
    });
    EXPECT_EQ(content(file_), before) << text;
    EXPECT_FALSE(fs::exists(file_.string() + "." + session_ + ".replacing"));
    fs::remove(journal);
  }
}

}  // namespace
}  // namespace hvd::bench::lockless_test
