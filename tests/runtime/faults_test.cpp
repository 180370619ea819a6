// If ranks disagree, hang, leave or give up, every rank must soon get an error that names the rank at fault.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <latch>

#include "engine/base/mutex.h"
#include "tests/base/errors.h"
#include "tests/base/patience.h"
#include "tests/runtime/ranks.h"

namespace hvd::faults_test {
namespace {

using std::chrono::milliseconds;
using test::expect_contains;
using test::GradientArena;
using test::make_gradients;
using test::on_ranks;
using test::Outcome;
using test::patient_options;
using test::submit;

EngineOptions impatient_options(Schedule schedule) {
  EngineOptions options = patient_options(schedule);
  options.deadline = milliseconds(600);
  return options;
}

void expect_ended(const Outcome& outcome, Errc code, std::string_view part) {
  EXPECT_EQ(outcome.code, code) << outcome.text;
  expect_contains(outcome.text, part);
}

struct Submission {
  std::vector<std::int64_t> shape;
  DataType dtype;
  ReduceOp op;
};

/// Rank r submits one tensor as submissions[r] says. Returns what wait() threw on each rank. Also checks that the
/// engines are usable afterwards.
std::vector<Outcome> submit_differently(const std::vector<Submission>& submissions) {
  std::vector<Outcome> tickets(submissions.size());
  test::expect_all_good(on_ranks(
      static_cast<int>(submissions.size()), patient_options(Schedule::kNegotiated), [&](Engine& engine, int r) {
        const auto rank = static_cast<std::size_t>(r);
        std::array<double, 64> data{};
        const Submission& mine = submissions[rank];
        const Ticket ticket = engine.all_reduce_async("embedding", data.data(), mine.shape, mine.dtype, mine.op);
        try {
          engine.wait(ticket);
        } catch (const Error& error) {
          tickets[rank] = {error.code(), error.what()};
        }
        float one = 1;
        engine.wait(submit(engine, "after", one));
        EXPECT_EQ(one, static_cast<float>(submissions.size()));
      }));
  return tickets;
}

TEST(Faults, AMismatchFailsTheTicketAlikeOnEveryRankAndNothingElse) {
  const Submission usual{{4, 2}, DataType::kF32, ReduceOp::kSum};
  for (const Submission& other :
       {Submission{{2, 4}, DataType::kF32, ReduceOp::kSum}, Submission{{4, 2}, DataType::kF64, ReduceOp::kSum},
        Submission{{4, 2}, DataType::kF32, ReduceOp::kMax}}) {
    const auto outcomes = submit_differently({usual, usual, other});
    for (const Outcome& outcome : outcomes) {
      EXPECT_EQ(outcome.code, Errc::kMismatch);
      EXPECT_EQ(outcome.text, outcomes[0].text);
    }
    expect_contains(outcomes[0].text, "embedding");
    expect_contains(outcomes[0].text, "rank 2");
  }
}

TEST(Faults, APlanMismatchNamesRankHostAndTensorWithBothValuesOnEveryRank) {
  const auto outcomes = on_ranks(3, patient_options(Schedule::kStatic), [](Engine& engine, int rank) {
    auto gradients = make_gradients(10);
    if (rank == 2) gradients[4].count += 1;
    engine.set_gradients(gradients, engine.allocate(10000).data(), DataType::kF32, ReduceOp::kSum);
  });
  const auto gradients = make_gradients(10);
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.code, Errc::kMismatch) << outcome.text;
    EXPECT_EQ(outcome.text, outcomes[0].text);
  }
  expect_contains(outcomes[0].text, "rank 2 (host ");
  expect_contains(outcomes[0].text, "'layer4.weight' has count " + std::to_string(gradients[4].count) + " here, " +
                                        std::to_string(gradients[4].count + 1) + " there");
}

TEST(Faults, APlanMismatchOfBucketSizesIsFoundToo) {
  auto communicators = comm::make_loopback(2);
  std::array<Outcome, 2> outcomes;
  test::on_threads(2, [&](std::size_t rank) {
    EngineOptions options = patient_options(Schedule::kStatic);
    options.buckets.first_bucket_bytes = rank == 0 ? 4 : 512;
    try {
      Engine engine(std::move(communicators[rank]), options);
      const GradientArena arena(engine, 10);
    } catch (const Error& error) {
      outcomes[rank] = {error.code(), error.what()};
    }
  });
  expect_ended(outcomes[0], Errc::kMismatch, "rank 1 (host ");
  EXPECT_EQ(outcomes[0].text, outcomes[1].text);
  expect_contains(outcomes[0].text, "bucket");
}

TEST(Faults, AFaultOfOneRankIsToldToThePeersWithItsName) {
  const auto outcomes = on_ranks(3, patient_options(Schedule::kStatic), [](Engine& engine, int rank) {
    if (rank == 1) engine.perform("a test", [] { throw Error(Errc::kBackend, "the disk burns"); });
    engine.barrier();
  });
  EXPECT_EQ(outcomes[1].code, Errc::kBackend);
  for (const std::size_t peer : {0U, 2U}) {
    EXPECT_EQ(outcomes[peer].code, Errc::kPeerLost);
    EXPECT_EQ(outcomes[peer].text, "rank 1 (host node0) gave up: the disk burns");
  }
}

class Hang : public testing::TestWithParam<Schedule> {};

/// Rank 1's training thread hangs in backward. Its engine still answers roll calls.
TEST_P(Hang, ARankThatNeverBecomesReadyIsNamedWithItsActivity) {
  for (const int size : {2, 4}) {
    std::latch others(size - 1);
    std::vector<milliseconds> took(static_cast<std::size_t>(size));
    const auto outcomes = on_ranks(size, impatient_options(GetParam()), [&](Engine& engine, int rank) {
      GradientArena arena(engine, 4);
      engine.set_activity("backward of layer4.2.conv3", 17);
      engine.begin_step();
      if (rank == 1) {
        others.wait();
        throw Error(Errc::kInterrupted, "the hang is over");
      }
      engine.set_activity("waiting for gradients", 17);
      const auto begin = Clock::now();
      arena.mark_all();
      try {
        engine.finish_step();
      } catch (const Error&) {
        took[static_cast<std::size_t>(rank)] = std::chrono::duration_cast<milliseconds>(Clock::now() - begin);
        others.count_down();
        throw;
      }
      others.count_down();
    });
    for (int rank = 0; rank < size; ++rank) {
      if (rank == 1) continue;
      const auto index = static_cast<std::size_t>(rank);
      expect_ended(outcomes[index], Errc::kPeerLost, "rank 1 (host ");
      expect_contains(outcomes[index].text, "step 17, backward of layer4.2.conv3");
      EXPECT_GT(took[index], milliseconds(500));
      EXPECT_LT(took[index], milliseconds(600) + test::kAtOnce);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Faults, Hang, testing::Values(Schedule::kStatic, Schedule::kNegotiated),
                         [](const auto& instance) { return std::string(name(instance.param)); });

/// Collects the lines that engines pass to EngineOptions::warn.
class Warnings {
 public:
  [[nodiscard]] EngineOptions options(Schedule schedule) {
    EngineOptions options = patient_options(schedule);
    options.deadline = milliseconds(8000);  // the warning comes after 2 s, and then the late rank has 6 s left
    options.warn = [this](std::string_view line) {
      const MutexLock lock(mutex_);
      lines_.emplace_back(line);
    };
    return options;
  }
  /// Called by the late rank. Waits until there is a warning, or until 6 s have passed.
  void await() {
    for (const auto until = Clock::now() + milliseconds(6000); lines().empty() && Clock::now() < until;) {
      std::this_thread::sleep_for(milliseconds(10));
    }
  }
  [[nodiscard]] std::vector<std::string> lines() {
    const MutexLock lock(mutex_);
    return lines_;
  }

 private:
  Mutex mutex_;
  std::vector<std::string> lines_ HVD_GUARDED_BY(mutex_);
};

class Stall : public testing::TestWithParam<int> {};

TEST_P(Stall, IsToldOnceByOneRankAndNamesTheMissingOne) {
  const int late = GetParam();
  Warnings warnings;
  test::expect_all_good(on_ranks(3, warnings.options(Schedule::kStatic), [&](Engine& engine, int rank) {
    GradientArena arena(engine, 4);
    engine.set_activity("backward of layer4.2.conv3", 17);
    engine.begin_step();
    if (rank == late) warnings.await();
    arena.mark_all();
    engine.finish_step();
  }));
  const auto lines = warnings.lines();
  ASSERT_EQ(lines.size(), 1U);
  const std::string name = "rank " + std::to_string(late) + " (host node0)";
  expect_contains(lines[0], "rank " + std::to_string(late == 0 ? 1 : 0) + " (host node0) has waited 2.");
  expect_contains(lines[0], " in all_reduce ");
  expect_contains(lines[0], " for " + name + ", which left ");
  expect_contains(lines[0], name + " is furthest behind: step 17, backward of layer4.2.conv3");
}

INSTANTIATE_TEST_SUITE_P(Faults, Stall, testing::Values(0, 2));

TEST(Faults, AStalledTensorIsToldWithTheRanksThatDidNotSubmitIt) {
  Warnings warnings;
  test::expect_all_good(on_ranks(2, warnings.options(Schedule::kNegotiated), [&](Engine& engine, int rank) {
    std::array<float, 2> ones{1, 1};
    const auto submit_tensor = [&](std::size_t t) { return submit(engine, "tensor" + std::to_string(t), ones[t]); };
    // Each rank submits a tensor that the other rank does not submit yet. Both ranks therefore go on negotiating and
    // nothing completes.
    const Ticket first = submit_tensor(static_cast<std::size_t>(rank));
    warnings.await();
    const Ticket second = submit_tensor(static_cast<std::size_t>(1 - rank));
    engine.wait(first);
    engine.wait(second);
  }));
  const auto lines = warnings.lines();
  ASSERT_EQ(lines.size(), 1U);
  expect_contains(lines[0], "tensor 'tensor0' was submitted by rank 0 but not by every rank within 2");
  expect_contains(lines[0], "; missing: rank 1 (host node0)");
}

TEST(Faults, AfterALostPeerTheFlightRecordTellsWhereEachRankIs) {
  std::string record;
  std::atomic<bool> over{false};
  on_ranks(2, impatient_options(Schedule::kStatic), [&](Engine& engine, int rank) {
    EXPECT_EQ(engine.flight_record(), "");
    engine.barrier();
    if (rank == 1) {
      while (!over) std::this_thread::sleep_for(milliseconds(5));
      return;
    }
    try {
      engine.barrier();
    } catch (const Error& error) {
      record = engine.flight_record();
      expect_contains(error.what(), "in barrier 2 for rank 1 (host node0), which did not arrive; it left barrier 1 ");
    }
    over = true;
  });
  expect_contains(record, "rank 0 (host node0): barrier 2, entered ");
  expect_contains(record, " ago, not left\nrank 0 (host node0): barrier 1, entered ");
  expect_contains(record, "\nrank 1 (host node0): barrier 1, entered ");
}

/// Start-up may take longer than the deadline of a step, because this deadline is set only after start-up.
TEST(Faults, ADeadlineSetLaterHoldsFromThenOnAndIsNamed) {
  std::latch ended(1);
  const auto outcomes = on_ranks(2, patient_options(Schedule::kStatic), [&](Engine& engine, int rank) {
    if (rank == 1) std::this_thread::sleep_for(milliseconds(900));
    engine.barrier();  // takes longer than the 600 ms that are set next
    engine.set_deadline({milliseconds(600), "--patience"});
    if (rank == 1) {
      ended.wait();
      return;
    }
    const auto begin = Clock::now();
    try {
      engine.barrier();
    } catch (const Error&) {
      EXPECT_GT(Clock::now() - begin, milliseconds(500));
      EXPECT_LT(Clock::now() - begin, milliseconds(600) + test::kAtOnce);
      ended.count_down();
      throw;
    }
  });
  expect_ended(outcomes[0], Errc::kPeerLost, "for rank 1 (host ");
  expect_contains(outcomes[0].text, "or raise --patience");
}

/// Both ranks take part in the negotiation, but each submits a tensor that the other rank does not submit.
TEST(Faults, ATensorThatNoOtherRankSubmitsRunsIntoTheDeadline) {
  EngineOptions options = patient_options(Schedule::kNegotiated);
  options.deadline = std::chrono::seconds(5);  // both ranks must have submitted their tensor by then
  const auto outcomes = on_ranks(2, options, [](Engine& engine, int rank) {
    float x = 1;
    engine.wait(submit(engine, rank == 0 ? "mine" : "yours", x));
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_TRUE(outcome.code == Errc::kTimeout || outcome.code == Errc::kPeerLost) << outcome.text;
    expect_contains(outcome.text, "was submitted by rank");
  }
}

TEST(Faults, AbortReachesAPeerThatWaitsLongBeforeItsDeadline) {
  const auto begin = Clock::now();
  const auto outcomes = on_ranks(3, patient_options(Schedule::kStatic), [](Engine& engine, int rank) {
    if (rank == 1) {
      std::this_thread::sleep_for(milliseconds(50));
      engine.abort("loss is not a number");
      for (;;) engine.barrier();  // repeats until this rank sees the abort
    }
    engine.barrier();
  });
  EXPECT_LT(Clock::now() - begin, test::kAtOnce);
  EXPECT_EQ(outcomes[0].code, Errc::kPeerLost);
  EXPECT_EQ(outcomes[1].code, Errc::kInterrupted);
  EXPECT_EQ(outcomes[2].code, Errc::kPeerLost);
  for (const Outcome& outcome : outcomes) {
    expect_contains(outcome.text, "rank 1 (host ");
    expect_contains(outcome.text, "gave up: loss is not a number");
    EXPECT_EQ(outcome.text.find("roll call"), std::string::npos) << outcome.text;
  }
}

/// An exception ends rank 1's function in the middle of a step and destroys its engine.
TEST(Faults, ARankThatLeavesInAStepReleasesItsPeersAtOnce) {
  const auto begin = Clock::now();
  const auto outcomes = on_ranks(2, patient_options(Schedule::kStatic), [](Engine& engine, int rank) {
    GradientArena arena(engine, 4);
    engine.begin_step();
    if (rank == 1) throw Error(Errc::kIo, "disk full");
    arena.mark_all();
    engine.finish_step();
  });
  EXPECT_LT(Clock::now() - begin, test::kAtOnce);
  expect_ended(outcomes[0], Errc::kPeerLost, "rank 1 (host ");
  EXPECT_EQ(outcomes[1].code, Errc::kIo);
}

TEST(Faults, AfterTheFirstErrorEveryCallThrowsItAndTheDestructorReturns) {
  std::latch failed(1);
  const auto outcomes = on_ranks(2, impatient_options(Schedule::kStatic), [&](Engine& engine, int rank) {
    if (rank == 1) {
      failed.wait();
      return;
    }
    std::string first;
    const auto expect_same = [&](const auto& call) {
      const std::string error = test::error_of(call);
      EXPECT_NE(error, "");
      if (first.empty()) first = error;
      EXPECT_EQ(error, first);
    };
    expect_same([&] { engine.barrier(); });
    failed.count_down();
    expect_same([&] { engine.barrier(); });
    expect_same([&] { engine.gather({}); });
    expect_same([&] { engine.allocate(64); });
    expect_same([&] { engine.begin_step(); });
    float x = 0;
    expect_same([&] { submit(engine, "x", x); });
    EXPECT_FALSE(engine.data_plane().empty());  // after a failure data_plane() must still describe the run
    engine.abort("once more");
  });
  test::expect_all_good(outcomes);
}

/// Rank 0 aborts while its engine thread waits for rank 1.
TEST(Faults, AbortWorksWhileTheThreadWaitsForAPeer) {
  const auto begin = Clock::now();
  std::latch aborted(1);
  const auto outcomes = on_ranks(2, patient_options(Schedule::kNegotiated), [&](Engine& engine, int rank) {
    if (rank == 1) {
      aborted.wait();
      engine.barrier();
      return;
    }
    float x = 1;
    const Ticket ticket = submit(engine, "lonely", x);
    std::this_thread::sleep_for(milliseconds(50));
    engine.abort("told to stop");
    aborted.count_down();
    engine.wait(ticket);
  });
  EXPECT_LT(Clock::now() - begin, test::kAtOnce);
  EXPECT_EQ(outcomes[0].code, Errc::kInterrupted);
  EXPECT_EQ(outcomes[1].code, Errc::kPeerLost);
  for (const Outcome& outcome : outcomes) expect_contains(outcome.text, "rank 0 (host ");
}

/// The destructor finishes the reduction of submitted tensors, even if no rank has called wait() for them.
TEST(Faults, TheDestructorFinishesWhatIsInFlight) {
  std::array<float, 2> data{1, 2};
  test::expect_all_good(on_ranks(2, patient_options(Schedule::kNegotiated), [&](Engine& engine, int rank) {
    if (rank == 1) std::this_thread::sleep_for(milliseconds(20));
    submit(engine, "x", data.at(static_cast<std::size_t>(rank)));
  }));
  EXPECT_EQ(data[0], 3.0F);
  EXPECT_EQ(data[1], 3.0F);
}

/// The destructor of an idle engine must not wait for other ranks.
TEST(Faults, AnIdleEngineGoesAtOnce) {
  const auto begin = Clock::now();
  test::expect_all_good(on_ranks(4, patient_options(Schedule::kNegotiated), [](Engine&, int) {}));
  EXPECT_LT(Clock::now() - begin, test::kAtOnce);
}

}  // namespace
}  // namespace hvd::faults_test
