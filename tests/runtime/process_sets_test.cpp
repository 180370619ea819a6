// Runs several engines at once on subsets of ranks. A rank may use its sets in any order. Each sum covers only the
// members of its set.
#include <gtest/gtest.h>

#include <array>

#include "tests/base/errors.h"
#include "tests/runtime/ranks.h"

namespace hvd::process_sets_test {
namespace {

TEST(ProcessSets, OverlappingSetsDoNotWaitForOneAnother) {
  constexpr int kRanks = 3;
  const std::array<std::array<int, 2>, 3> sets{{{0, 1}, {1, 2}, {2, 0}}};
  std::array<std::vector<std::unique_ptr<comm::Communicator>>, 3> communicators;
  for (std::size_t s = 0; s < sets.size(); ++s) communicators[s] = comm::make_loopback_set(kRanks, sets[s]);
  std::atomic<int> good{0};
  test::on_threads(kRanks, [&](std::size_t rank) {
    // Rank r submits to set r first and then to its other set. If one thread served all sets, the ranks would wait in a
    // circle.
    std::array<std::unique_ptr<Engine>, 3> engines;
    for (std::size_t s = 0; s < sets.size(); ++s) {
      if (communicators[s][rank]) {
        engines[s] =
            std::make_unique<Engine>(std::move(communicators[s][rank]), test::patient_options(Schedule::kNegotiated));
      }
    }
    const std::array<std::size_t, 2> order{rank, (rank + 2) % 3};
    std::array<float, 2> values{};
    std::array<Ticket, 2> tickets{};
    for (int round = 0; round < 20; ++round) {
      for (std::size_t i = 0; i < 2; ++i) {
        values[i] = static_cast<float>(rank + 1);
        tickets[i] = test::submit(*engines[order[i]], "v", values[i]);
      }
      for (std::size_t i = 0; i < 2; ++i) {
        engines[order[i]]->wait(tickets[i]);
        const auto& set = sets[order[i]];
        if (values[i] == static_cast<float>(set[0] + set[1] + 2)) ++good;
      }
    }
  });
  EXPECT_EQ(good.load(), kRanks * 2 * 20);
}

TEST(ProcessSets, RanksFollowTheListAndOthersGetNothing) {
  const std::array<int, 2> set{3, 1};
  const auto ranks = comm::make_loopback_set(4, set);
  ASSERT_EQ(ranks.size(), 4U);
  EXPECT_EQ(ranks[0], nullptr);
  EXPECT_EQ(ranks[2], nullptr);
  EXPECT_EQ(ranks[3]->topology().rank, 0);
  EXPECT_EQ(ranks[1]->topology().rank, 1);
  EXPECT_EQ(ranks[1]->topology().size, 2);
}

TEST(ProcessSets, ABadListIsRefused) {
  const auto refused = [](std::vector<int> ranks, const char* part) {
    test::expect_error(Errc::kInvalidArgument, part, [&] { return comm::make_loopback_set(4, ranks); });
  };
  refused({}, "at least one rank");
  refused({1, 4}, "rank 4 is not one of the 4 ranks");
  refused({-1}, "rank -1 is not one of the 4 ranks");
  refused({2, 0, 2}, "rank 2 is named twice");
}

}  // namespace
}  // namespace hvd::process_sets_test
