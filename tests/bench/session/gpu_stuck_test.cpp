// Tests a rank whose training thread is stuck in a call of CUDA. The test runs the rank in a separate process, which
// must end with one message, the right exit code, and a store.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include "bench/cli/console.h"
#include "bench/cli/record_keeper.h"
#include "bench/session/session.h"
#include "bench/store/sqlite_handle.h"
#include "tests/bench/fake_gpus.h"
#include "tests/bench/session/gpu_sessions.h"

namespace hvd::bench::gpu_stuck_test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr const char* kStore = "HVD_TEST_STUCK_STORE";

/// Runs a session in which rank 0 does not return from its 60th launch; rank 1 notices this at its deadline. The
/// function returns only if the test has failed.
void train_until_stuck(const std::string& store) {
  const std::string session = new_uuid();
  RecordKeeper keeper(std::make_unique<ResultStore>(store, session, "hvd_bench"), [](std::string_view) {});
  test::FakeGpus gpus(2);
  std::atomic<int> launches = 0;
  gpus.on_launch = [&](int gpu) {
    if (gpu != 0 || ++launches < 60) return;
    for (;;) std::this_thread::sleep_for(1s);
  };
  SessionObserver observer;
  observer.save = [&](const RunRecord& run) { keeper.save(run); };
  observer.stuck_patience = 500ms;
  observer.stuck = [&](const Error& error) {
    say_error(error.what());
    const std::string problem = keeper.close_now(error.what(), Deadline::after(10s));
    if (!problem.empty()) say_error(problem);
    std::_Exit(exit_code(error.code()));  // as main() does
  };
  Options options = test::gpu_options(2);
  options.num_iters = 100000;
  options.engine.deadline = 1500ms;
  run_session(
      options, observer,
      [&](RunRecord& run) {
        run.uuid = new_uuid();
        run.session_uuid = session;
        run.started_utc = utc_now();
      },
      &gpus);
}

TEST(GpuStuck, TheProcessLeavesWithItsMessageAndItsStore) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // the child is a new process of this program
  const bool child = std::getenv(kStore) != nullptr;
  const fs::path folder = child ? fs::path() : fs::temp_directory_path() / ("hvd_stuck_" + new_uuid());
  const std::string store = child ? std::getenv(kStore) : (folder / "a.db").string();
  if (!child) {
    fs::create_directory(folder);
    ::setenv(kStore, store.c_str(), 1);
  }
  EXPECT_EXIT(train_until_stuck(store), testing::ExitedWithCode(exit_code(Errc::kPeerLost)),
              "rank 0 \\(host [^)]*\\) is furthest behind: .*step [0-9]+ is still being enqueued");
  ::unsetenv(kStore);
  {
    Database database(store, Locking::kShared, false);
    EXPECT_EQ(database.text("SELECT status FROM run"), "incomplete");
    EXPECT_NE(database.text("SELECT status_reason FROM run").find("is furthest behind"), std::string::npos);
  }
  fs::remove_all(folder);
}

}  // namespace
}  // namespace hvd::bench::gpu_stuck_test
