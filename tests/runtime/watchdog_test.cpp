// A Watchdog takes part in what the engine's thread does. The engines of these tests reduce host memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>

#include "engine/runtime/roll_call.h"
#include "tests/base/errors.h"
#include "tests/base/patience.h"
#include "tests/comm/loopback_world.h"
#include "tests/runtime/ranks.h"

namespace hvd::watchdog_test {
namespace {

using namespace std::chrono_literals;
using test::expect_contains;
using test::GradientArena;
using test::patient_options;

/// Records its calls. Read the records after the engine is destroyed.
class Recorder final : public Watchdog {
 public:
  void before_gradient(std::size_t gradient) override { gradients.push_back(gradient); }
  void look() override {
    if (!fails.load()) return;
    failed_looks.fetch_add(1);
    throw Error(code, "the work outside hangs");
  }
  std::optional<RankStatus> status() override { return progress; }
  void failed(const Error& why) noexcept override { failures.emplace_back(why.what()); }

  std::atomic<bool> fails{false};        ///< look() throws
  std::atomic<int> failed_looks{0};      ///< how often it has
  Errc code = Errc::kBackend;            ///< what it throws
  std::optional<RankStatus> progress{};  ///< what status() returns
  std::vector<std::size_t> gradients;
  std::vector<std::string> failures;
};

/// Runs body(engine, rank) on one rank per watchdog and communicator. Returns what the body threw on each rank.
template <std::size_t kRanks, class Body>
std::array<std::string, kRanks> on_watched_ranks(
    std::array<Recorder, kRanks>& watchdogs, const EngineOptions& options, const Body& body,
    std::vector<std::unique_ptr<comm::Communicator>> communicators = comm::make_loopback(kRanks)) {
  std::array<std::string, kRanks> errors;
  test::on_threads(kRanks, [&](std::size_t rank) {
    errors[rank] = test::error_of([&] {
      Engine engine(std::move(communicators[rank]), options, &watchdogs[rank]);
      body(engine, rank);
      return 0;
    });
  });
  return errors;
}

/// Returns, by an exception, when the engine has failed.
void await_failure(Engine& engine) {
  for (;; std::this_thread::sleep_for(1ms)) engine.throw_if_failed();
}

TEST(Watchdog, HearsOfEveryGradientOfANegotiatedStep) {
  std::array<Recorder, 2> watchdogs;
  const auto errors =
      on_watched_ranks(watchdogs, patient_options(Schedule::kNegotiated), [](Engine& engine, std::size_t /*rank*/) {
        GradientArena arena(engine, 3);
        arena.step();
        arena.step();
        float value = 1;
        engine.wait(test::submit(engine, "a ticket", value));
      });
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(errors[rank], "");
    std::vector<std::size_t>& gradients = watchdogs[rank].gradients;
    ASSERT_EQ(gradients.size(), 6U);
    std::sort(gradients.begin(), gradients.begin() + 3);
    std::sort(gradients.begin() + 3, gradients.end());
    EXPECT_EQ(gradients, (std::vector<std::size_t>{0, 1, 2, 0, 1, 2}));
    EXPECT_TRUE(watchdogs[rank].failures.empty());
  }
}

TEST(Watchdog, EndsAllEnginesAndHearsOfItOnce) {
  std::array<Recorder, 2> watchdogs;
  const auto errors =
      on_watched_ranks(watchdogs, patient_options(Schedule::kStatic), [&](Engine& engine, std::size_t rank) {
        engine.barrier();
        if (rank == 1) watchdogs[1].fails = true;
        await_failure(engine);
      });
  EXPECT_EQ(errors[1], "backend: the work outside hangs");
  EXPECT_EQ(errors[0], "peer_lost: rank 1 (host node0) gave up: the work outside hangs");
  EXPECT_EQ(watchdogs[1].failures, std::vector<std::string>{"the work outside hangs"});
  EXPECT_EQ(watchdogs[0].failures, std::vector<std::string>{"rank 1 (host node0) gave up: the work outside hangs"});
}

/// Rank 0 waits in no collective.
TEST(Watchdog, AnIdleEngineNoticesADeadPeer) {
  for (const bool watched : {true, false}) {
    test::KillableWorld world(2);
    auto communicators = world.communicators();
    Recorder watchdog;
    const auto begin = Clock::now();
    const std::string error = test::error_of([&] {
      Engine engine(std::move(communicators[0]), patient_options(Schedule::kStatic), watched ? &watchdog : nullptr);
      world.kill(1);
      await_failure(engine);
      return 0;
    });
    EXPECT_LT(Clock::now() - begin, test::kAtOnce);
    expect_contains(error, "peer_lost: rank 1 (host node0) is lost: its process ");
    EXPECT_EQ(world.roll_calls(), 0U);
  }
}

TEST(Watchdog, AnswersARollCallInThePlaceOfTheEngine) {
  std::array<Recorder, 2> watchdogs;
  watchdogs[0].progress = RankStatus{.step = 8, .moved = 0, .waits = true, .activity = "step 8 waits"};
  watchdogs[1].progress = RankStatus{.step = 7, .moved = 0, .waits = false, .activity = "step 7 is on the GPU"};
  EngineOptions options = patient_options(Schedule::kStatic);
  options.deadline = 600ms;
  const auto errors = on_watched_ranks(watchdogs, options, [](Engine& engine, std::size_t rank) {
    if (rank == 0) engine.barrier();
    await_failure(engine);
  });
  EXPECT_TRUE(errors[0].starts_with("peer_lost: ")) << errors[0];
  expect_contains(errors[0], "rank 1 (host node0) is furthest behind: step 7 is on the GPU");
}

/// Ranks 2 and 3 have given up on a peer. Rank `first` does so next. Returns the number of roll calls.
std::uint32_t roll_calls_of_a_hang(std::size_t first, std::array<std::string, 4>& errors) {
  test::KillableWorld world(4);
  std::array<Recorder, 4> watchdogs;
  for (Recorder& watchdog : watchdogs) watchdog.code = Errc::kTimeout;
  for (const std::size_t early : {2U, 3U}) watchdogs[early].fails = true;
  errors = on_watched_ranks(
      watchdogs, patient_options(Schedule::kStatic),
      [&](Engine& engine, std::size_t rank) {
        while (rank == first && watchdogs[2].failed_looks + watchdogs[3].failed_looks < 2) {
          std::this_thread::sleep_for(1ms);
        }
        if (rank == first) watchdogs[first].fails = true;
        await_failure(engine);
      },
      world.communicators());
  return world.roll_calls();
}

/// At N ranks, N roll calls would be N * N messages.
TEST(Watchdog, OneRankCallsTheRollForAllRanksThatGiveUp) {
  for (const std::size_t first : {0U, 1U}) {
    std::array<std::string, 4> errors;
    std::uint32_t calls = 0;
    // On a busy machine `first` may be too late for the patience of the others.
    for (int attempt = 0; attempt < 20 && calls != 1; ++attempt) calls = roll_calls_of_a_hang(first, errors);
    EXPECT_EQ(calls, 1U) << "rank " << first;
    for (const std::string& error : errors) {
      expect_contains(error, "the work outside hangs; roll call: all ranks answered and none is behind");
    }
  }
}

TEST(Watchdog, IsNotCalledInAWorldOfOneRank) {
  Recorder watchdog;
  watchdog.fails = true;
  {
    Engine engine(comm::make_solo(), patient_options(Schedule::kNegotiated), &watchdog);
    GradientArena arena(engine, 3);
    arena.step();
    test::expect_error(Errc::kBackend, "the disk burns", [&] {
      engine.perform("a test", [] { throw Error(Errc::kBackend, "the disk burns"); });
      return 0;
    });
  }
  EXPECT_TRUE(watchdog.gradients.empty());
  EXPECT_TRUE(watchdog.failures.empty());
}

}  // namespace
}  // namespace hvd::watchdog_test
