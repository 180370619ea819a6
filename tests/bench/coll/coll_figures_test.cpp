// Tests the schedule of samples of hvd_bench coll, the figures from these samples, and the output. Expected values are
// computed by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include "bench/cli/coll/report.h"
#include "bench/coll/cells.h"
#include "bench/coll/result.h"
#include "bench/coll/schedule.h"
#include "bench/measure/median.h"
#include "tests/bench/coll/coll_options.h"

namespace hvd::bench::coll_figures_test {
namespace {

using namespace coll;
using test::says;

TEST(CollSample, ArrivalAndTransferAreApart) {
  // Rank 0 starts at 0 ns and ends at 1000 ns. Rank 1 starts at 300 ns and ends at 1100 ns.
  const Sample sample = sample_of({{0, 300}, {1000, 1100}}, 2, 5);
  EXPECT_DOUBLE_EQ(sample.seconds, 500e-9) << "the slowest rank's time, of one of two operations";
  EXPECT_DOUBLE_EQ(sample.skew, 300e-9);
  EXPECT_DOUBLE_EQ(sample.transfer, 400e-9);
  EXPECT_EQ(sample.last_rank, 1);
  EXPECT_EQ(sample.round, 5U);
}

VisitTimes times_of(double seconds) {
  const auto end = static_cast<std::int64_t>(seconds * 1e9);
  return {{0, 10}, {end, end}};
}

ScheduleRule rule() {
  ScheduleRule rule;
  rule.stop.minimum_samples = 10;
  rule.warmup = 2;
  return rule;
}

/// Runs `schedule` to its end. One operation of cell c takes about seconds[c]. Returns how often each cell was visited.
std::map<std::uint32_t, std::size_t> play(Schedule& schedule, const std::vector<double>& seconds,
                                          std::vector<std::vector<std::uint32_t>>* orders = nullptr) {
  std::map<std::uint32_t, std::size_t> visits;
  std::size_t turn = 0;
  for (std::vector<Visit> next = schedule.next(0.05); !next.empty(); next = schedule.next(0.05)) {
    for (const Visit& visit : next) {
      if (orders != nullptr) {
        orders->resize(schedule.round());
        orders->back().push_back(visit.cell);
      }
      ++visits[visit.cell];
      const double noise = 1 + 1e-5 * static_cast<double>(turn++ * 7919 % 101);
      schedule.add(visit, times_of(seconds[visit.cell] * noise * visit.batch));
    }
  }
  return visits;
}

TEST(CollSchedule, EveryRoundVisitsEveryOpenCellInAnotherOrder) {
  CollOptions options = test::sizes_only();
  const std::vector<Cell> cells = make_cells(options, 2, false);
  Schedule schedule(cells, rule());
  std::vector<std::vector<std::uint32_t>> orders;
  play(schedule, std::vector<double>(cells.size(), 0.001), &orders);
  ASSERT_GE(orders.size(), 12U);
  std::set<std::vector<std::uint32_t>> different;
  for (std::vector<std::uint32_t> order : orders) {
    different.insert(order);
    std::sort(order.begin(), order.end());
    EXPECT_EQ(order, (std::vector<std::uint32_t>{0, 1, 2, 3}));
  }
  EXPECT_GT(different.size(), 4U);
  for (std::size_t cell = 0; cell < cells.size(); ++cell) {
    EXPECT_EQ(schedule.stop_reason(cell), "interval narrow enough");
    EXPECT_EQ(schedule.samples(cell).size(), 10U);
  }
  EXPECT_EQ(schedule.finished(), cells.size());
}

TEST(CollSchedule, ShortOperationsAreBatchedUntilTheClockIsFineEnough) {
  const std::vector<Cell> cells{{Problem{}, 0, 0}};
  Schedule schedule(cells, rule());
  play(schedule, {1e-6});
  EXPECT_EQ(schedule.batch(0), 1024U) << "4 to the power that makes 1 ms of 1 us";
  EXPECT_NEAR(schedule.samples(0)[0].seconds, 1e-6, 1e-8);
  ScheduleRule unbatched = rule();
  unbatched.may_batch = false;
  Schedule single(cells, unbatched);
  play(single, {1e-6});
  EXPECT_EQ(single.batch(0), 1U);
}

TEST(CollSchedule, ABatchThatIsLaunchedSeveralTimesIsSoManyOperations) {
  ScheduleRule launched = rule();
  launched.launches = 16;
  Schedule schedule({{Problem{}, 0, 0}}, launched);
  play(schedule, {16e-6});  // a batch of one operation is launched 16 times, 1 us per launch
  EXPECT_EQ(schedule.batch(0), 64U) << "4 to the power that makes 1 ms of 16 us";
  EXPECT_EQ(schedule.operations(0), 1024U);
  EXPECT_NEAR(schedule.samples(0)[0].seconds, 1e-6, 1e-8);
}

TEST(CollSchedule, TheTimeCapEndsACellAndSaysSo) {
  ScheduleRule capped = rule();
  capped.stop.maximum_seconds = 1;
  capped.stop.target_half_width = 1e-9;
  Schedule schedule({{Problem{}, 0, 0}}, capped);
  play(schedule, {0.1});
  EXPECT_EQ(schedule.stop_reason(0), "time cap");
  EXPECT_GE(schedule.samples(0).size(), 6U);
  EXPECT_LE(schedule.samples(0).size(), 8U);
}

TEST(CollSchedule, TheTimeCapOfOneCellEndsItsGroup) {
  ScheduleRule capped = rule();
  capped.stop.maximum_seconds = 2;
  capped.stop.target_half_width = 1e-9;
  // Cells 0 and 1 are two variants of one problem. Cell 1 is far faster than cell 0. Cell 2 belongs to another problem.
  Schedule schedule({{Problem{}, 0, 0}, {Problem{}, 1, 0}, {Problem{}, 0, 1}}, capped);
  const auto visits = play(schedule, {0.1, 0.001, 0.1});
  EXPECT_EQ(visits.at(0), visits.at(1));
  EXPECT_LE(visits.at(0), 21U) << "2 s of 0.1 s";
  EXPECT_EQ(visits.at(2), visits.at(0));
  for (std::size_t cell = 0; cell < 3; ++cell) EXPECT_EQ(schedule.stop_reason(cell), "time cap");
}

TEST(CollSchedule, CellsThatAreComparedGoOnUntilAllAreNarrow) {
  Schedule schedule({{Problem{}, 0, 0}, {Problem{}, 1, 0}, {Problem{}, 0, 1}}, rule());
  std::map<std::uint32_t, std::size_t> visits;
  for (std::vector<Visit> next = schedule.next(0.05); !next.empty(); next = schedule.next(0.05)) {
    for (const Visit& visit : next) {
      const bool scattered = visit.cell == 1 && visits[visit.cell] % 2 == 0 && visits[visit.cell] < 40;
      ++visits[visit.cell];
      schedule.add(visit, times_of(scattered ? 0.03 : 0.01));
    }
  }
  EXPECT_EQ(schedule.samples(0).size(), schedule.samples(1).size());
  EXPECT_GT(schedule.samples(0).size(), schedule.samples(2).size());
  EXPECT_EQ(schedule.samples(2).size(), 10U);
  EXPECT_EQ(schedule.stop_reason(0), "interval narrow enough");
  EXPECT_EQ(schedule.stop_reason(1), "interval narrow enough");
}

TEST(CollSchedule, CellsThatAreComparedHaveOneBatch) {
  Schedule schedule({{Problem{}, 0, 0}, {Problem{}, kBare, 0}, {Problem{}, 0, 1}}, rule());
  play(schedule, {10e-6, 2e-6, 10e-6});
  EXPECT_EQ(schedule.batch(0), 1024U) << "2 us need 1024 operations for 1 ms, and 10 us get as many";
  EXPECT_EQ(schedule.batch(1), schedule.batch(0));
  EXPECT_EQ(schedule.batch(2), 256U);
  ScheduleRule short_of_time = rule();
  short_of_time.stop.maximum_seconds = 0.1;  // 100 ms for 2 cells with 10 samples each: 5 ms per sample
  Schedule capped({{Problem{}, 0, 0}, {Problem{}, kBare, 0}}, short_of_time);
  play(capped, {10e-6, 1e-6});
  EXPECT_EQ(capped.batch(0), 256U) << "1024 operations of 10 us take more than 5 ms";
}

TEST(CollSchedule, AColdFirstVisitDoesNotDecideTheBatch) {
  ScheduleRule eager = rule();
  eager.warmup = 0;
  Schedule schedule({{Problem{}, 0, 0}}, eager);
  bool first = true;
  for (std::vector<Visit> next = schedule.next(0.05); !next.empty(); next = schedule.next(0.05)) {
    schedule.add(next[0], times_of(std::exchange(first, false) ? 0.01 : 10e-6 * next[0].batch));
  }
  EXPECT_EQ(schedule.batch(0), 256U);
  EXPECT_NEAR(schedule.samples(0).front().seconds, 10e-6, 1e-9);
}

TEST(CollSchedule, AnUnknownDurationGoesAloneSoThatASignalIsSeen) {
  Schedule schedule(make_cells(test::sizes_only(), 2, true), rule());
  EXPECT_EQ(schedule.next(0.05).size(), 1U);
}

/// Results of one problem of 1 MiB: two variants, and the bare kernel. Variant 1 takes half the time of variant 0.
struct Measured {
  std::vector<Cell> cells;
  CollOptions options;
  CollResult result;
};

Measured measured(const std::vector<std::optional<std::uint64_t>>& wrong, const std::string& interrupted = {}) {
  Measured all;
  all.options.sizes = {1 << 20};
  all.options.place = Place::kOutOfPlace;
  all.options.variants = {{"algorithm=ring", {}, true}, {"algorithm=shm", {}, true}};
  all.cells = make_cells(all.options, 2, true);
  Schedule schedule(all.cells, rule());
  play(schedule, {0.002, 0.001, 0.0005});
  coll::World world;
  world.ranks = 2;
  world.comm = "loopback";
  world.hosts = {"a", "a\"b"};
  world.facts["numa.of_rank"] = {"node 0: ranks 0-1", false};
  add_caution(world.facts, "test", "of a test");
  all.result.world = world;
  all.result.cells = results_of(all.cells, schedule, wrong, world, std::nullopt, interrupted);
  all.result.variants = {"algorithm=ring", "algorithm=shm"};
  all.result.interrupted = interrupted;
  return all;
}

TEST(CollResultFigures, NoIntervalOfATimeReachesBelowZero) {
  ScheduleRule ten = rule();
  ten.warmup = 0;
  ten.stop.maximum_samples = 10;
  ten.may_batch = false;
  Schedule schedule({{Problem{}, 0, 0}}, ten);
  int turn = 0;
  for (auto next = schedule.next(0.05); !next.empty(); next = schedule.next(0.05)) {
    schedule.add(next[0], times_of(turn++ % 10 < 5 ? 0.001 : 0.03));
  }
  ASSERT_LT(quick_interval(seconds_of(schedule.samples(0))).low, 0) << "no test of anything";
  const auto results = results_of({{Problem{}, 0, 0}}, schedule, {std::nullopt}, {}, std::nullopt, "");
  EXPECT_EQ(results.at(0).seconds.low, 0);
}

TEST(CollResultFigures, TheMarkOfAWideIntervalIsThatOfAllSamples) {
  ScheduleRule twenty = rule();
  twenty.stop.minimum_samples = 10;
  twenty.stop.maximum_samples = 40;
  // The two cells are one group. Cell 0 has scattered times from visit 13 on, cell 1 has them before visit 20.
  Schedule schedule({{Problem{}, 0, 0}, {Problem{}, 1, 0}}, twenty);
  std::map<std::uint32_t, std::size_t> visits;
  for (auto next = schedule.next(0.05); !next.empty(); next = schedule.next(0.05)) {
    for (const Visit& visit : next) {
      const std::size_t turn = visits[visit.cell]++;
      const bool scattered = turn % 2 == 0 && (visit.cell == 0 ? turn >= 13 : turn < 20);
      schedule.add(visit, times_of(scattered ? 0.03 : 0.01));
    }
  }
  const auto results =
      results_of({{Problem{}, 0, 0}, {Problem{}, 1, 0}}, schedule, {std::nullopt, std::nullopt}, {}, std::nullopt, "");
  for (const CellResult& cell : results) {
    EXPECT_EQ(cell.settled, relative_half_width(cell.seconds) <= twenty.stop.target_half_width);
  }
}

TEST(CollResultFigures, TheSpreadIsThatOfNcclTests) {
  ScheduleRule one_each = rule();
  one_each.warmup = 0;
  one_each.may_batch = false;
  one_each.stop.minimum_samples = one_each.stop.maximum_samples = 200;
  Schedule schedule({{Problem{}, 0, 0}}, one_each);
  int turn = 0;
  for (auto next = schedule.next(0.05); !next.empty(); next = schedule.next(0.05)) {
    schedule.add(next[0], times_of(0.001 * ++turn));
  }
  const auto results = results_of({{Problem{}, 0, 0}}, schedule, {std::nullopt}, {}, std::nullopt, "");
  const Spread& spread = results.at(0).spread;
  EXPECT_DOUBLE_EQ(spread.minimum, 0.001);
  EXPECT_DOUBLE_EQ(spread.maximum, 0.2);
  EXPECT_DOUBLE_EQ(spread.percentile_99, 0.198) << "198 of 200";
  EXPECT_DOUBLE_EQ(spread.percentile_95, 0.19);
  EXPECT_NEAR(spread.mean, 0.1005, 1e-9);
  EXPECT_NEAR(spread.variation(), std::sqrt((200.0 * 200 - 1) / 12) / 100.5, 1e-9) << "of whole numbers from 1 to 200";
}

TEST(CollResultFigures, RatesBoundAndRatio) {
  const Measured all = measured({0, 0, std::nullopt});
  ASSERT_EQ(all.result.cells.size(), 2U) << "the bare kernel is no row";
  const CellResult& ring = all.result.cells[0];
  const CellResult& shm = all.result.cells[1];
  EXPECT_NEAR(ring.seconds.value, 0.002, 1e-5);
  EXPECT_NEAR(ring.algorithm_rate, (1 << 20) / 0.002, 1e7);
  EXPECT_DOUBLE_EQ(ring.bus_rate, ring.algorithm_rate) << "2 (n - 1) / n = 1";
  EXPECT_FALSE(ring.ratio);
  ASSERT_TRUE(shm.ratio);
  EXPECT_NEAR(shm.ratio->value, 0.5, 0.01);
  EXPECT_LE(shm.ratio->low, 0.5 * 1.01);
  ASSERT_TRUE(ring.bound && shm.bound);
  EXPECT_NEAR(*ring.bound, 0.25, 0.01);
  EXPECT_NEAR(*shm.bound, 0.5, 0.01);
  EXPECT_EQ(ring.last_rank, 1);
  EXPECT_DOUBLE_EQ(ring.last_share, 1);
  EXPECT_EQ(all.result.exit_code(), 0);
}

TEST(CollResultFigures, AWrongResultAndASignalHaveExitCodes) {
  EXPECT_EQ(measured({3, 0, std::nullopt}).result.exit_code(), 1);
  EXPECT_EQ(measured({0, std::nullopt, std::nullopt}, "SIGTERM").result.exit_code(), 7);
}

TEST(CollReport, TheTableBeginsAsNcclTests) {
  const Measured all = measured({3, std::nullopt, std::nullopt}, "SIGTERM");
  const std::string text = table(all.options, all.result);
  std::istringstream lines(text);
  std::vector<std::vector<std::string>> rows;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("#")) continue;
    std::istringstream words(line);
    rows.emplace_back();
    for (std::string word; words >> word;) rows.back().push_back(word);
  }
  ASSERT_EQ(rows.size(), 2U);
  const std::vector<std::string> first(rows[0].begin(), rows[0].begin() + 5);
  EXPECT_EQ(first, (std::vector<std::string>{"1048576", "262144", "float", "sum", "-1"}));
  EXPECT_EQ(rows[0][8], "3") << "#wrong";
  EXPECT_EQ(rows[1][8], "N/A");
  EXPECT_EQ(rows[0][9], "-") << "no form in place";
  EXPECT_TRUE(says(text, "Out of bounds values : 3 FAILED"));
  EXPECT_TRUE(says(text, "INCOMPLETE           : stopped by SIGTERM"));
  EXPECT_TRUE(says(text, "all_reduce, algorithm=shm"));
  EXPECT_TRUE(says(text, "\n# caution: of a test\n"));
  const std::string file = json(all.options, all.result, {}, {});
  EXPECT_TRUE(says(file, "\"numa\": \"node 0: ranks 0-1\""));
  EXPECT_TRUE(says(file, "\"caution: of a test\""));
}

TEST(CollReport, AStepOfAModelIsTheSumOfItsBuckets) {
  Measured all = measured({0, 0, std::nullopt});
  all.options.model = "vgg16";
  all.options.repeats = {3};
  const std::string text = table(all.options, all.result);
  EXPECT_TRUE(says(text, "# One step of vgg16, 3 buckets of 3.00 MiB: all_reduce sum, algorithm=ring: 600"));
  EXPECT_TRUE(says(text, "algorithm=shm: 300"));
  EXPECT_TRUE(says(text, " us out of place\n"));
  EXPECT_TRUE(says(json(all.options, all.result, {}, {}), "\"in_place_time\": null"));
}

TEST(CollReport, CsvHasAFieldForEachColumn) {
  const std::string text = csv(measured({0, 0, std::nullopt}).result);
  std::istringstream lines(text);
  std::size_t count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    EXPECT_EQ(std::count(line.begin(), line.end(), ','), 29) << line;
  }
  EXPECT_EQ(count, 3U);
}

TEST(CollReport, ATimeThatTheClockCannotTellIsLeftOut) {
  Measured all = measured({0, 0, std::nullopt});
  ScheduleRule one_each = rule();
  one_each.may_batch = false;
  Schedule schedule(all.cells, one_each);
  play(schedule, {0, 0, 0.0005});
  all.result.cells = results_of(all.cells, schedule, {0, 0, std::nullopt}, all.result.world, std::nullopt, "");
  const std::string text = json(all.options, all.result, {}, {});
  EXPECT_TRUE(says(text, "\"time\": null"));
  EXPECT_TRUE(says(text, "\"min_us\": null"));
  EXPECT_TRUE(says(text, "\"bound\": null"));
  EXPECT_TRUE(says(csv(all.result), "algorithm=shm,,1048576,262144,float,sum,0,0,,"));
}

TEST(CollReport, CsvQuotesTheErrorThatEndedASession) {
  Measured all = measured({0, 0, std::nullopt});
  all.result.cells[0].stop_reason = R"(rank 1 is lost, after "all_reduce")";
  EXPECT_TRUE(says(csv(all.result), R"(,"rank 1 is lost, after ""all_reduce""")"));
}

TEST(CollReport, JsonHasNcclTestsKeysAndOnlyTheGivenEnvironment) {
  const Measured all = measured({0, 0, std::nullopt});
  const std::string text = json(all.options, all.result, {"hvd_bench", "coll"}, {{"env.OMP_NUM_THREADS", {"1", true}}});
  for (const char* key : {"\"version\"",
                          "\"start_time\"",
                          "\"args\"",
                          "\"config\"",
                          "\"devices\"",
                          "\"results\"",
                          "\"size\"",
                          "\"redop\"",
                          "\"out_of_place\"",
                          "\"in_place\": null",
                          "\"alg_bw\"",
                          "\"bus_bw\"",
                          "\"nwrong\"",
                          "\"out_of_bounds\"",
                          "\"average_bus_bandwidth\"",
                          "\"root\": \"-1\"",
                          "\"okay\": \"true\"",
                          "\"blocking_collectives\": \"false\"",
                          "\"out_of_place_per_iter\"",
                          "\"cv_pct\""}) {
    EXPECT_TRUE(says(text, key));
  }
  EXPECT_TRUE(says(text, "env.OMP_NUM_THREADS=1"));
  EXPECT_TRUE(says(text, R"("hostname": "a\"b")"));
  const CellResult& first = all.result.cells[0];
  EXPECT_TRUE(says(text, "\"actual_iterations\": " + std::to_string(first.samples * first.batch)));
}

TEST(CollReport, AGraphsLaunchesAreInTheTableAndInJson) {
  Measured all = measured({0, 0, std::nullopt});
  const std::string line = "# a sample is 8 launch(es) of a CUDA graph of operations (-G)\n";
  EXPECT_TRUE(says(json(all.options, all.result, {"hvd_bench", "coll"}, {}), "\"graph\": 0"));
  EXPECT_FALSE(says(table(all.options, all.result), line));
  all.options.graph_launches = 8;
  EXPECT_TRUE(says(json(all.options, all.result, {"hvd_bench", "coll"}, {}), "\"graph\": 8"));
  EXPECT_TRUE(says(table(all.options, all.result), line));
}

TEST(CollFigures, CrossoversAreOfTheGroupsWithAllThreeSides) {
  std::vector<CellResult> cells;
  std::size_t group = 0;
  const auto add = [&](MeasuredCollective collective, std::size_t bytes, std::vector<double> seconds) {
    for (std::size_t variant = 0; variant < seconds.size(); ++variant) {
      CellResult cell;
      cell.cell.problem.collective = collective;
      cell.cell.variant = static_cast<int>(variant);
      cell.cell.group = group;
      cell.bytes = bytes;
      cell.samples = 10;
      cell.seconds.value = seconds[variant];
      cells.push_back(cell);
    }
    ++group;
  };
  add(MeasuredCollective::kAllReduce, 1024, {1, 2, 3});
  add(MeasuredCollective::kAllReduce, 2048, {3, 2, 4});
  add(MeasuredCollective::kAllReduce, 4096, {5, 4, 3});
  add(MeasuredCollective::kAllReduce, 8192, {1, 9});  // the session was interrupted and has no time of the ring
  add(MeasuredCollective::kReduceScatter, 1024, {1, 2, 2});
  add(MeasuredCollective::kAllGather, 1024, {1, 2, 2});
  add(MeasuredCollective::kAllGather, 2048, {2, 1, 1});
  EXPECT_EQ(crossovers_of(cells), (comm::Thresholds{1024, 2048, 1024}));
  // At 1024 bytes doubling now has no samples, so crossovers_of() must leave out this size.
  cells.front().samples = 0;
  EXPECT_EQ(crossovers_of(cells).doubling_bytes, 2047U);
}

}  // namespace
}  // namespace hvd::bench::coll_figures_test
