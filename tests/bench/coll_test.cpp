// hvd_bench coll in its pure parts: problems and their bandwidths, exact inputs, the list of cells, the schedule of
// samples, figures, and what is printed and written. Expected by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <set>
#include <sstream>
#include <utility>

#include "bench/cli/coll_command.h"
#include "bench/coll/cells.h"
#include "bench/coll/operation.h"
#include "bench/coll/pattern.h"
#include "bench/coll/report.h"
#include "bench/coll/result.h"
#include "bench/coll/schedule.h"
#include "bench/measure/median.h"
#include "engine/base/error.h"
#include "engine/comm/reduce.h"

namespace hvd::bench::coll_test {
namespace {

using namespace coll;

CollCommand parse(const std::string& line) {
  std::vector<std::string> argv{"hvd_bench", "coll"};
  std::istringstream words(line);
  for (std::string word; words >> word;) argv.push_back(word);
  return parse_coll(argv);
}

std::string error_of(const std::string& line) {
  try {
    parse(line);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kInvalidArgument);
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.what();
  }
  return "(no error)";
}

testing::AssertionResult says(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "'" << part << "' is not in: " << text;
}

TEST(CollCommandLine, DefaultsNeedNothing) {
  const CollOptions options = parse("").options;
  EXPECT_EQ(options.collectives, std::vector{Collective::kAllReduce});
  EXPECT_EQ(options.sizes.front(), 1024U);
  EXPECT_EQ(options.sizes.back(), std::size_t{64} << 20);
  EXPECT_EQ(options.variants.size(), 1U);
  EXPECT_TRUE(options.variants[0].registered);
  EXPECT_EQ(options.checks, 1U);
}

TEST(CollCommandLine, NcclTestsLetters) {
  const CollCommand command = parse("-b 8 -e 1K -f 2 -n 30 -w 2 -c 0 -d half,fp64 -o prod -z 3 -J a.json");
  const CollOptions& options = command.options;
  EXPECT_EQ(options.sizes, (std::vector<std::size_t>{8, 16, 32, 64, 128, 256, 512, 1024}));
  EXPECT_EQ(options.least_samples, 30U);
  EXPECT_EQ(options.warmup, 2U);
  EXPECT_EQ(options.checks, 0U);
  EXPECT_EQ(options.types, (std::vector{DataType::kF16, DataType::kF64}));
  EXPECT_EQ(options.ops, std::vector{ReduceOp::kProduct});
  EXPECT_EQ(options.pace, Pace::kBarrierOutside);
  EXPECT_EQ(options.json_file, "a.json");
  EXPECT_EQ(parse("-b 100 -e 350 -i 100").options.sizes, (std::vector<std::size_t>{100, 200, 300}));
  EXPECT_EQ(parse("-b 0 -e 200 -i 100").options.sizes, (std::vector<std::size_t>{0, 100, 200}));
  EXPECT_EQ(parse("-d all -o all --collective all").options.types.size(), std::size_t{kDataTypes});
}

TEST(CollCommandLine, Bytes) {
  EXPECT_EQ(parse_bytes("-b", "4096"), 4096U);
  EXPECT_EQ(parse_bytes("-b", "4k"), 4096U);
  EXPECT_EQ(parse_bytes("-b", "1.5M"), 1572864U);
  EXPECT_EQ(parse_bytes("-b", "2G"), std::size_t{2} << 30);
  for (const char* bad : {"", "K", "-1", "4KB", "1e", "9999999T", "nan"}) {
    EXPECT_THROW(parse_bytes("-b", bad), Error) << bad;
  }
}

TEST(CollCommandLine, BadInputIsOneLineThatSaysWhatIsRight) {
  EXPECT_TRUE(says(error_of("-b 2M -e 1M"), "-b 2097152 is above -e 1048576"));
  EXPECT_TRUE(says(error_of("-f 1"), "-f: '1'"));
  EXPECT_TRUE(says(error_of("-b 0"), "-b 0 does not grow by a factor; give -i"));
  EXPECT_TRUE(says(error_of("-d flaot"), "did you mean float"));
  EXPECT_TRUE(says(error_of("-o median"), "one of sum, prod"));
  EXPECT_TRUE(says(error_of("--collective reduce"), "one of all_reduce"));
  EXPECT_TRUE(says(error_of("--collective all,barrier"), "stands alone"));
  EXPECT_TRUE(says(error_of("--compare algorithm=ring"), "names one value"));
  EXPECT_TRUE(says(error_of("--compare algorithm=ring,ring"), "given twice"));
  EXPECT_TRUE(says(error_of("--compare colour=red,blue"), "one of algorithm, memory, segment"));
  EXPECT_TRUE(says(error_of("--from-model vgg61"), "unknown model"));
  EXPECT_TRUE(says(error_of("--from-model vgg16 -b 1K"), "leave one out"));
  EXPECT_TRUE(says(error_of("--from-model vgg16 -d half,float"), "name one with -d"));
  EXPECT_TRUE(says(error_of("--bucket-mb 5"), "--from-model"));
  EXPECT_TRUE(says(error_of("-n 100001"), "-n"));
  EXPECT_TRUE(says(error_of("-J x --csv x"), "name one file"));
  EXPECT_TRUE(says(error_of("-J ./x --csv folder/../x"), "name one file"));
  EXPECT_TRUE(says(error_of("-b 1 -e 64M -i 1"), "-i 1 gives more than 4096 sizes from -b 1 to -e 67108864"));
  EXPECT_TRUE(says(error_of("--batch-size 3"), "no such option"));
  EXPECT_TRUE(says(error_of("--ranks 2 --comm mpi"), "leave one of them out"));
}

TEST(CollCommandLine, Gpus) {
  EXPECT_FALSE(parse("").options.gpus);
  EXPECT_TRUE(parse("--device cuda --compare memory=registered,plain").options.gpus);
  for (const char* fixed : {"--algorithm ring", "--compare algorithm=ring,shm", "--compare segment=1K,2K"}) {
    EXPECT_TRUE(says(error_of(std::string("--device cuda ") + fixed), "NCCL chooses its algorithm")) << fixed;
  }
}

TEST(CollCommandLine, OtherLettersOfNcclTestsAreAnswered) {
  EXPECT_TRUE(
      says(error_of("-g 8"), "'-g': 'hvd_bench coll' takes no such option of nccl-tests: each rank has one GPU"));
  EXPECT_TRUE(says(error_of("--agg_iters=4"), "put together until a sample is long enough"));
  EXPECT_TRUE(says(error_of("-a1"), "the slowest rank's"));
  EXPECT_FALSE(says(error_of("--ngpu"), "nccl-tests"));
  // All of nccl-tests 2.19.6 that are no options here.
  for (const char* letter : {"-t", "-g", "-m", "-N", "-p", "-r", "-y", "-T", "-G", "-C",
                             "-S", "-a", "-R", "-x", "-D", "-V", "-M", "-u", "-I", "-K"}) {
    EXPECT_TRUE(says(error_of(std::string(letter) + " 1"), "of nccl-tests: ")) << letter;
  }
  for (const char* name : {"--per_iter_timing", "--per_iter_skip", "--local_register"}) {
    EXPECT_TRUE(says(error_of(std::string(name) + " 1"), "of nccl-tests: ")) << name;
  }
  EXPECT_EQ(parse("--output_file a.json").options.json_file, "a.json");
  EXPECT_EQ(parse("-c 3").options.checks, 3U);
}

TEST(CollCommandLine, CompareMakesOneVariantAValue) {
  const CollOptions options = parse("--memory plain --compare algorithm=ring,shm").options;
  ASSERT_EQ(options.variants.size(), 2U);
  EXPECT_EQ(options.variants[0].comm.algorithm, comm::Algorithm::kRing);
  EXPECT_EQ(options.variants[1].name, "algorithm=shm");
  EXPECT_FALSE(options.variants[1].registered);
  const CollOptions memory = parse("--algorithm shm --compare memory=plain,registered").options;
  EXPECT_FALSE(memory.variants[0].registered);
  EXPECT_TRUE(memory.variants[1].registered);
  EXPECT_EQ(memory.variants[1].comm.algorithm, comm::Algorithm::kSharedMemory);
}

// The page on performance of NVIDIA's nccl-tests.
TEST(CollProblem, BusFactors) {
  EXPECT_DOUBLE_EQ(bus_factor(Collective::kAllReduce, 4), 1.5);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::kReduceScatter, 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::kAllGather, 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::kAllToAll, 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::kBroadcast, 4), 1);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::kAllReduce, 1), 0);
}

TEST(CollProblem, SharesAreEqualAndWhole) {
  const Problem gather = problem_of(Collective::kAllGather, 100, DataType::kF32, ReduceOp::kMax, {}, 3);
  EXPECT_EQ(gather.count, 8U);  // 100 / 4 / 3
  EXPECT_EQ(gather.in_count(3), 8U);
  EXPECT_EQ(gather.out_count(3), 24U);
  EXPECT_EQ(gather.bytes(3), 96U);
  EXPECT_EQ(gather.op, ReduceOp::kSum) << "no reduction: all of its operations are one cell";
  EXPECT_EQ(gather.footprint(3), 64U + 128U);
  const Problem small = problem_of(Collective::kAllToAll, 1, DataType::kF64, ReduceOp::kSum, {}, 5);
  EXPECT_EQ(small.bytes(5), 40U) << "at least one element a share";
}

TEST(CollProblem, RaggedSharesGrowWithTheRank) {
  const Problem scatter =
      problem_of(Collective::kReduceScatter, 100, DataType::kF32, ReduceOp::kSum, {.ragged = true}, 3);
  EXPECT_EQ(scatter.count, 4U) << "25 elements are 4 times 1 + 2 + 3 units";
  EXPECT_EQ(scatter.shares(3), (std::vector<std::size_t>{4, 8, 12}));
  EXPECT_EQ(scatter.in_count(3), 24U);
  EXPECT_EQ(scatter.out_count(3), 12U) << "of the last rank";
  EXPECT_EQ(scatter.before(2), 12U);
  const Problem exchange = problem_of(Collective::kAllToAll, 100, DataType::kF32, ReduceOp::kSum, {.ragged = true}, 3);
  for (int rank = 0; rank < 3; ++rank) {
    std::size_t sent = 0, received = 0;
    for (int other = 0; other < 3; ++other) {
      sent += exchange.message(rank, other, 3);
      received += exchange.message(other, rank, 3);
    }
    EXPECT_EQ(sent, exchange.in_count(3));
    EXPECT_EQ(received, exchange.out_count(3));
  }
  EXPECT_FALSE(problem_of(Collective::kAllReduce, 100, DataType::kF32, ReduceOp::kSum, {.ragged = true}, 3).ragged);
}

TEST(CollProblem, SizesOfAModelAreItsBuckets) {
  const BucketSizes buckets = bucket_sizes("resnet50", DataType::kF32, {});
  ASSERT_FALSE(buckets.sizes.empty());
  EXPECT_TRUE(std::is_sorted(buckets.sizes.begin(), buckets.sizes.end()));
  // 25,557,032 parameters in fp32, in buckets of 25 MiB at the least but for the first and the last.
  const std::size_t all = std::size_t{25557032} * sizeof(float);
  EXPECT_GE(buckets.sizes.back(), std::size_t{25} << 20);
  const auto sum = [](const BucketSizes& of) {
    return std::inner_product(of.sizes.begin(), of.sizes.end(), of.repeats.begin(), std::size_t{0});
  };
  EXPECT_GE(sum(buckets), all);
  EXPECT_LE(sum(buckets), all + all / 100) << "but for alignment";
  const BucketSizes half = bucket_sizes("resnet50", DataType::kF16, {});
  EXPECT_NEAR(static_cast<double>(sum(half)), static_cast<double>(sum(buckets)) / 2, 1e4) << "half the bytes";
  EXPECT_GE(half.sizes.back(), std::size_t{25} << 20) << "in as large buckets";
  EXPECT_GT(bucket_sizes("resnet50", DataType::kF32, {.bucket_bytes = 1 << 20}).sizes.size(), buckets.sizes.size());
}

std::vector<std::byte> filled(const Pattern& pattern, DataType type, std::size_t count, std::size_t phase = 0) {
  std::vector<std::byte> bytes(count * size_of(type));
  pattern.fill(bytes, phase);
  return bytes;
}

struct World {
  DataType type;
  ReduceOp op;
  int ranks;
};

class CollPattern : public testing::TestWithParam<World> {};

// The engine's own kernels, which compute in the element type, in two orders.
TEST_P(CollPattern, IsExactInTheType) {
  const auto [type, op, ranks] = GetParam();
  constexpr std::size_t kCount = kPeriod + 100;
  constexpr std::size_t kPhase = 7;
  std::vector<std::vector<std::byte>> inputs;
  for (int rank = 0; rank < ranks; ++rank) {
    inputs.push_back(filled(reduction_input(rank, ranks, type, op), type, kCount, kPhase));
  }
  const Pattern wanted = reduction_result(ranks, type, op);
  for (const bool reversed : {false, true}) {
    std::vector<std::byte> sum = reversed ? inputs.back() : inputs.front();
    for (int i = 1; i < ranks; ++i) {
      const auto& next = inputs[static_cast<std::size_t>(reversed ? ranks - 1 - i : i)];
      comm::reduce_pair(sum.data(), sum.data(), next.data(), kCount, type, op);
    }
    if (op == ReduceOp::kAverage) comm::divide(sum.data(), kCount, type, ranks);
    EXPECT_EQ(wanted.wrong(sum, kPhase), 0U);
    EXPECT_GT(wanted.wrong(sum, kPhase + 1), kCount / 4) << "a shift by one element would not be seen";
    for (std::size_t b = 0; b < size_of(type); ++b) sum[3 * size_of(type) + b] ^= std::byte{0x55};
    EXPECT_EQ(wanted.wrong(sum, kPhase), 1U);
  }
}

std::vector<World> worlds() {
  std::vector<World> all;
  for (std::uint8_t type = 0; type < kDataTypes; ++type) {
    for (std::uint8_t op = 0; op < kReduceOps; ++op) {
      for (const int ranks : {2, 3, 7, 64}) {
        all.push_back({static_cast<DataType>(type), static_cast<ReduceOp>(op), ranks});
      }
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(TypesAndOperations, CollPattern, testing::ValuesIn(worlds()), [](const auto& test) {
  return std::string(name(test.param.type)) + "_" + std::string(name(test.param.op)) + "_" +
         std::to_string(test.param.ranks);
});

TEST(CollPatternOfManyRanks, ASumOfMoreRanksThanTheTypeCountsToIsExact) {
  constexpr int kRanks = 512;
  double sum = 0;
  for (int rank = 0; rank < kRanks; ++rank) {
    std::uint16_t element = 0;
    const auto bytes = filled(reduction_input(rank, kRanks, DataType::kBF16, ReduceOp::kSum), DataType::kBF16, 1);
    std::memcpy(&element, bytes.data(), sizeof element);
    sum += element == 0 ? 0 : 1;
  }
  EXPECT_EQ(sum, 256) << "bf16 holds all integers up to 256";
}

TEST(CollPatternOfMessages, NameTheirSenderAndReceiver) {
  const auto bytes = filled(message(1, 2, DataType::kF32), DataType::kF32, 500);
  EXPECT_EQ(message(1, 2, DataType::kF32).wrong(bytes, 0), 0U);
  for (const auto& [from, to] : {std::pair{2, 1}, {1, 0}, {0, 2}}) {
    EXPECT_GT(message(from, to, DataType::kF32).wrong(bytes, 0), 450U) << from << " to " << to;
  }
}

TEST(CollPatternOfNumbers, ANanIsWrong) {
  std::vector<float> found(10, std::nanf(""));
  EXPECT_EQ(reduction_result(3, DataType::kF32, ReduceOp::kAverage).wrong(std::as_bytes(std::span(found)), 0), 10U);
}

CollOptions small_options() {
  CollOptions options;
  options.sizes = {1024, 4096};
  return options;
}

TEST(CollCells, EachProblemOnceWithItsBareKernel) {
  CollOptions options = small_options();
  options.sizes.push_back(4097);  // the same elements
  EXPECT_EQ(make_cells(options, 2, true).size(), 2U * 2 * 2) << "sizes, places, bare kernel";
  EXPECT_EQ(make_cells(options, 2, false).size(), 2U * 2) << "no bare kernel for several hosts";
  options.ops = {ReduceOp::kSum, ReduceOp::kMax};
  options.collectives = {Collective::kAllGather};
  EXPECT_EQ(make_cells(options, 2, false).size(), 2U * 2);
  options.collectives = {Collective::kBarrier};
  EXPECT_EQ(make_cells(options, 2, true).size(), 1U);
  options.collectives = {Collective::kAllToAll};
  options.place = Place::kInPlace;
  EXPECT_THROW(make_cells(options, 2, true), Error);
}

TEST(CollCells, BuffersRotateThroughTwiceTheCache) {
  CollOptions options = small_options();
  const std::vector<Cell> cells = make_cells(options, 2, true);
  EXPECT_GE(arena_bytes(options, cells, 2, 1 << 20), (2U << 20) + 8192);
  options.warm = true;
  EXPECT_EQ(arena_bytes(options, cells, 2, 1 << 20), 8192U);
  EXPECT_EQ(arena_count(options, cells), 2U) << "registered, and plain for the bare kernel";
  options.variants.push_back({"second", {}, false});
  EXPECT_EQ(arena_count(options, cells), 2U);
}

TEST(CollCells, MemoryThatDoesNotFitIsRefusedWithASizeThatWould) {
  CollOptions options = small_options();
  options.sizes = {65536, 1U << 20};
  options.warm = true;
  options.bound = false;
  const auto objection = [&](std::size_t free_bytes) {
    return memory_objection(options, make_cells(options, 2, true), 2, 0, {"this host", 2, 1, free_bytes});
  };
  EXPECT_EQ(objection(8 << 20), "");
  EXPECT_EQ(objection(0), "") << "unknown";
  EXPECT_TRUE(says(objection(2 << 20), "-e 524288 would fit"));
  options.sizes = {524288};
  EXPECT_EQ(objection(2 << 20), "") << "what was advised is taken";
  options.warm = false;
  EXPECT_TRUE(says(memory_objection(options, make_cells(options, 2, true), 2, 1 << 30, {"this host", 2, 1, 2 << 20}),
                   "-e 524288 with --warm"));
}

TEST(CollCells, TheAdviceOfARefusalCanBeFollowed) {
  CollOptions options = small_options();
  options.bound = false;
  options.sizes = {1U << 20, 2U << 20};
  const auto objection = [&](std::size_t cache_bytes, std::size_t free_bytes) {
    return memory_objection(options, make_cells(options, 2, true), 2, cache_bytes,
                            {"this host in /dev/shm", 2, 1, free_bytes});
  };
  const std::string below_b = objection(0, 1 << 20);
  EXPECT_TRUE(says(below_b, "a smaller -b: up to 262144 bytes would fit"));
  EXPECT_TRUE(says(below_b, "of this host in /dev/shm"));
  EXPECT_EQ(below_b.find("-e"), std::string::npos) << "-e would be below -b: " << below_b;
  options.model = "vgg16";
  EXPECT_TRUE(says(objection(1 << 20, 8 << 20), "; --warm would fit")) << "-e is refused beside --from-model";
  EXPECT_TRUE(says(objection(1 << 20, 1 << 20), "instead of --from-model -e 262144, which would fit with --warm"));
  EXPECT_TRUE(says(objection(1 << 20, 64), "fewer ranks"));
}

/// Where the buffers of `operations` operations begin, bytes from those of the first.
std::vector<std::ptrdiff_t> places_of(Places places, const Problem& problem, int operations) {
  Arena arena(1 << 16, places);
  comm::Topology topology;
  topology.size = 2;
  std::vector<std::ptrdiff_t> offsets;
  for (int i = 0; i < operations; ++i) offsets.push_back(arena.next(problem, topology).in - arena.bytes().data());
  return offsets;
}

TEST(CollArena, WarmOperationsStayInOnePlaceAndOthersRotate) {
  const Problem problem{Collective::kAllReduce, 4096, DataType::kF32, ReduceOp::kSum, true};  // 16 KiB of 64 KiB
  EXPECT_EQ(places_of(Places::kFixed, problem, 3), (std::vector<std::ptrdiff_t>{0, 0, 0}));
  EXPECT_EQ(places_of(Places::kRotating, problem, 5), (std::vector<std::ptrdiff_t>{0, 16384, 32768, 49152, 0}));
}

TEST(CollSample, ArrivalAndTransferAreApart) {
  // Rank 1 comes 300 ns late; all end at 1000 and 1100.
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

/// Plays a session in which cell c takes seconds[c]; returns how often each was visited.
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
  CollOptions options = small_options();
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
  ScheduleRule one = rule();
  one.may_batch = false;
  Schedule single(cells, one);
  play(single, {1e-6});
  EXPECT_EQ(single.batch(0), 1U);
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
  // Two variants of one problem, the second far faster, and another problem.
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
  short_of_time.stop.maximum_seconds = 0.1;  // 5 ms for each of 2 x 10 samples
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
  Schedule schedule(make_cells(small_options(), 2, true), rule());
  EXPECT_EQ(schedule.next(0.05).size(), 1U);
}

/// Two variants of one problem of 1 MiB with a bare kernel; variant 1 takes half the time of variant 0.
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
  // Cell 0 is steady at first and scattered later, while cell 1 of its group is scattered at first.
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

}  // namespace
}  // namespace hvd::bench::coll_test
