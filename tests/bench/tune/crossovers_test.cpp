// Tests the crossovers between hosts: at which sizes they are set, and the file that keeps them.
#include "bench/tune/crossovers.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/error.h"

namespace hvd::bench::crossovers_test {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kKi = 1024;

/// Models the time of an algorithm: steps * latency + bytes * share / rate.
double seconds(std::size_t bytes, double steps, double share) {
  return steps * 20e-6 + static_cast<double>(bytes) * share / 3e9;
}

/// Modelled times of all-reduces on 16 ranks.
std::vector<AllReduceTimes> reductions() {
  std::vector<AllReduceTimes> times;
  for (std::size_t bytes = kKi; bytes <= 4096 * kKi; bytes *= 2) {
    times.push_back({bytes, seconds(bytes, 4, 4), seconds(bytes, 8, 1.9), seconds(bytes, 30, 1.875)});
  }
  return times;
}

TEST(Crossovers, AreWhereTheTimesCross) {
  // With x bytes and l = latency * rate = 60 KB, doubling (4 l + 4 x) and Rabenseifner (8 l + 1.9 x) take equally long
  // at x = 1.905 l = 114 KB. The ring sends 1 % less than Rabenseifner but takes 30 steps.
  const comm::Thresholds at = best_thresholds(reductions(), {{kKi, 1, 2}, {2 * kKi, 2, 2.5}, {4 * kKi, 4, 3}});
  EXPECT_EQ(at.doubling_bytes, 64 * kKi);
  EXPECT_EQ(at.rabenseifner_bytes, 4096 * kKi);
  EXPECT_EQ(at.direct_bytes, 2 * kKi);
}

TEST(Crossovers, OneDisturbedSizeMovesNothing) {
  std::vector<AllReduceTimes> times = reductions();
  times[1].doubling *= 1.5;   // at 2 KiB
  times[10].doubling *= 0.7;  // at 1 MiB, where doubling is far from the fastest
  const comm::Thresholds at = best_thresholds(times, {});
  EXPECT_EQ(at.doubling_bytes, 64 * kKi);
}

TEST(Crossovers, AnAlgorithmThatNeverWinsGetsNoSizes) {
  std::vector<AllReduceTimes> times;
  for (const std::size_t bytes : {kKi, 2 * kKi, 4 * kKi}) times.push_back({bytes, 2, 3, 1});
  EXPECT_EQ(best_thresholds(times, {{kKi, 2, 1}}), (comm::Thresholds{kKi - 1, 0, kKi - 1})) << "smaller: unknown";
  EXPECT_EQ(best_thresholds({{1024 * kKi, 2, 3, 1}}, {{1024 * kKi, 2, 1}}), comm::Thresholds{}) << "the defaults";
  EXPECT_EQ(best_thresholds({}, {}), comm::Thresholds{});
  for (AllReduceTimes& cell : times) cell = {cell.bytes, 1, 3, 2};
  EXPECT_EQ(best_thresholds(times, {{kKi, 1, 2}}), (comm::Thresholds{4 * kKi, 0, kKi}));
}

TEST(Crossovers, TheTwoOperationsOfSharesHaveOneCut) {
  // At 2 KiB, the ring takes 2 times as long as direct for one operation, and direct takes 1.1 times as long as the
  // ring for the other operation. Both operations must therefore use direct at 2 KiB.
  const comm::Thresholds at =
      best_thresholds({}, {{2 * kKi, 1, 2}, {2 * kKi, 1.1, 1}, {kKi, 1, 2}, {kKi, 1, 2}, {4 * kKi, 2, 1}});
  EXPECT_EQ(at.direct_bytes, 2 * kKi);
}

TEST(Crossovers, Text) {
  EXPECT_EQ(crossover_text({64 * kKi, 1024 * kKi, 32 * kKi}),
            "all_reduce: doubling up to 64 KiB, rabenseifner up to 1 MiB, above that ring; reduce_scatter and "
            "all_gather: direct up to 32 KiB, above that ring");
  EXPECT_EQ(crossover_text({0, 0, 0}), "all_reduce: ring; reduce_scatter and all_gather: ring");
}

TEST(Crossovers, AFileOfAnotherCaseOrADamagedOneIsNotTaken) {
  const CrossoverCase conditions{{"ranks", "4"}, {"hosts", "2"}};
  const comm::Thresholds at{400, 4000, 7};
  const std::string text = crossover_file(conditions, at);
  EXPECT_EQ(parse_crossovers(text, conditions), at);
  EXPECT_EQ(parse_crossovers(text, {{"ranks", "4"}, {"hosts", "3"}}), std::nullopt);
  for (std::size_t cut = 0; cut < text.size(); ++cut)
    EXPECT_EQ(parse_crossovers(text.substr(0, cut), conditions), std::nullopt);
  for (const char* const damaged : {"thresholds=400 4000 -7\n", "thresholds=400 4000 7 8\n", "thresholds=400 4000\n",
                                    "thresholds=400 4000 99999999999999999999999\n", "other=400 4000 7\n"}) {
    EXPECT_EQ(parse_crossovers("ranks=4\nhosts=2\n" + std::string(damaged), conditions), std::nullopt) << damaged;
  }
  EXPECT_NE(crossover_path("f", conditions), crossover_path("f", {{"ranks", "4"}, {"hosts", "3"}}));
}

TEST(Crossovers, AllRanksGetWhatRankZeroHasKept) {
  const fs::path folder = fs::path(testing::TempDir()) / "crossovers";
  fs::remove_all(folder);
  auto world = comm::make_loopback(4, {}, 2);
  const auto kept = [&] {
    std::array<std::optional<comm::Thresholds>, 4> by_rank;
    std::vector<std::thread> ranks;
    for (std::size_t r = 0; r < 4; ++r) {
      ranks.emplace_back([&, r] {
        by_rank[r] = kept_crossovers(*world[r], folder.string(), Deadline::after(std::chrono::seconds(60)));
      });
    }
    for (std::thread& rank : ranks) rank.join();
    for (const auto& thresholds : by_rank) EXPECT_EQ(thresholds, by_rank[0]);
    return by_rank[0];
  };
  EXPECT_EQ(kept(), std::nullopt);
  const CrossoverCase conditions = crossover_case(world[0]->topology(), world[0]->library());
  const comm::Thresholds at{1, 2, 3};
  EXPECT_EQ(keep_crossovers(folder.string(), conditions, at), crossover_path(folder.string(), conditions));
  EXPECT_EQ(kept(), at);
  std::ofstream(crossover_path(folder.string(), conditions)) << "ranks=4\n";
  EXPECT_EQ(kept(), std::nullopt);
  std::ofstream(folder / "file");
  EXPECT_THROW(keep_crossovers((folder / "file").string(), conditions, at), Error);
}

}  // namespace
}  // namespace hvd::bench::crossovers_test
