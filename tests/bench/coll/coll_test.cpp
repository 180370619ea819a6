// Tests the pure parts of hvd_bench coll: the command line, problems and their bandwidths, inputs whose sums are exact,
// the list of cells, and the places of buffers. Expected values are computed by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <numeric>
#include <sstream>
#include <utility>

#include "bench/cli/coll/command.h"
#include "bench/coll/cells.h"
#include "bench/coll/operation.h"
#include "bench/coll/pattern.h"
#include "bench/world/values.h"
#include "engine/base/error.h"
#include "engine/comm/reduce.h"
#include "tests/bench/coll/coll_options.h"
#include "tests/bench/scratch.h"

namespace hvd::bench::coll_test {
namespace {

using namespace coll;
using test::says;
using namespace std::chrono_literals;

CollCommand parse(const std::string& line) {
  std::vector<std::string> argv{"hvd_bench", "coll"};
  std::istringstream words(line);
  for (std::string word; words >> word;) argv.push_back(word);
  return parse_coll(argv);
}

std::string error_of(const std::string& line) {
  const std::string error = test::error_of(Errc::kInvalidArgument, [&] { parse(line); });
  EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  return error;
}

TEST(CollCommandLine, DefaultsNeedNothing) {
  const CollOptions options = parse("").options;
  EXPECT_EQ(options.collectives, std::vector{MeasuredCollective::kAllReduce});
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
  EXPECT_TRUE(says(error_of("--from-replay none.replay --from-model vgg16"), "leave one out"));
  EXPECT_TRUE(says(error_of("--from-replay none.replay -e 1M"), "--from-replay gives the sizes"));
  EXPECT_TRUE(says(error_of("-n 100001"), "-n"));
  EXPECT_TRUE(says(error_of("-J x --csv x"), "name one file"));
  EXPECT_TRUE(says(error_of("-J ./x --csv folder/../x"), "name one file"));
  EXPECT_TRUE(says(error_of("-b 1 -e 64M -i 1"), "-i 1 gives more than 4096 sizes from -b 1 to -e 67108864"));
  EXPECT_TRUE(says(error_of("--batch-size 3"), "no such option"));
  EXPECT_TRUE(says(error_of("--ranks 2 --comm mpi"), "leave one of them out"));
}

TEST(CollCommandLine, Ranks) {
  const CollOptions none = parse("").options;
  EXPECT_EQ(none.comm, CommBackend::kAuto);
  EXPECT_EQ(none.ranks, 0);
  EXPECT_EQ(none.deadline.timeout, 60s);
  EXPECT_EQ(none.startup_deadline.timeout, 300s);
  const CollOptions given =
      parse("--ranks 2 --comm loopback --deadline-seconds 5 --startup-deadline-seconds 7").options;
  EXPECT_EQ(given.comm, CommBackend::kLoopback);
  EXPECT_EQ(given.ranks, 2);
  EXPECT_EQ(given.deadline.timeout, 5s);
  EXPECT_EQ(given.deadline.set_by, std::string("--deadline-seconds"));
  EXPECT_EQ(given.startup_deadline.timeout, 7s);
  EXPECT_EQ(given.startup_deadline.set_by, std::string("--startup-deadline-seconds"));
}

TEST(CollCommandLine, Gpus) {
  EXPECT_FALSE(parse("").options.gpus);
  EXPECT_TRUE(parse("--device cuda --compare memory=registered,plain").options.gpus);
  for (const char* fixed : {"--algorithm ring", "--compare algorithm=ring,shm", "--compare segment=1K,2K"}) {
    EXPECT_TRUE(says(error_of(std::string("--device cuda ") + fixed), "NCCL chooses its algorithm")) << fixed;
  }
}

TEST(CollCommandLine, ASearchForCrossoversSaysItselfWhatIsMeasured) {
  const CollOptions options = parse("--find-crossovers --tuning-folder kept").options;
  EXPECT_TRUE(options.find_crossovers);
  EXPECT_EQ(options.tuning_folder, "kept");
  EXPECT_EQ(options.sizes.front(), 1024U);
  EXPECT_EQ(options.sizes.back(), std::size_t{4} << 20);
  ASSERT_EQ(options.variants.size(), 3U);
  EXPECT_EQ(options.variants[2].comm.thresholds, (comm::Thresholds{0, 0, 0}));
  EXPECT_EQ(parse("--find-crossovers -b 8 -e 32 -f 2").options.sizes, (std::vector<std::size_t>{8, 16, 32}));
  for (const char* const other :
       {"--compare memory=registered,plain", "--algorithm ring", "--from-model vgg16", "--ragged", "--device cuda"}) {
    EXPECT_TRUE(
        says(error_of("--find-crossovers " + std::string(other)), "--find-crossovers chooses the cells itself"));
  }
}

TEST(CollCommandLine, OtherLettersOfNcclTestsAreAnswered) {
  EXPECT_TRUE(
      says(error_of("-g 8"), "'-g': 'hvd_bench coll' takes no such option of nccl-tests: each rank has one GPU"));
  EXPECT_TRUE(says(error_of("--agg_iters=4"), "put together until a sample is long enough"));
  EXPECT_TRUE(says(error_of("-a1"), "the slowest rank's"));
  EXPECT_FALSE(says(error_of("--ngpu"), "nccl-tests"));
  // These are all options of nccl-tests 2.19.6 that hvd_bench coll does not have.
  for (const char* letter : {"-t", "-g", "-m", "-N", "-p", "-r", "-y", "-T", "-C", "-S", "-a", "-R", "-x", "-D", "-V",
                             "-M", "-u", "-I", "-K"}) {
    EXPECT_TRUE(says(error_of(std::string(letter) + " 1"), "of nccl-tests: ")) << letter;
  }
  for (const char* name : {"--per_iter_timing", "--per_iter_skip", "--local_register"}) {
    EXPECT_TRUE(says(error_of(std::string(name) + " 1"), "of nccl-tests: ")) << name;
  }
  EXPECT_EQ(parse("--output_file a.json").options.json_file, "a.json");
  EXPECT_EQ(parse("-c 3").options.checks, 3U);
}

TEST(CollCommandLine, AGraphHoldsWhatAGpuDoesWithoutTheHost) {
  const CollOptions options = parse("-G 8 --device cuda --collective all_reduce,all_to_all").options;
  EXPECT_EQ(options.graph_launches, 8U);
  EXPECT_TRUE(options.warm) << "the operations of a graph have fixed places";
  EXPECT_EQ(parse("--cudagraph 3 --device cuda").options.graph_launches, 3U);
  EXPECT_FALSE(parse("-G 0").options.warm);
  EXPECT_EQ(error_of("-G 8"), "-G: a CUDA graph holds operations of a GPU; give --device cuda, or leave -G out");
  EXPECT_TRUE(says(error_of("-G 8 --device cuda -z 2"), "the host waits for operations"));
  EXPECT_EQ(error_of("-G 8 --device cuda --collective all"),
            "-G: the host takes part in broadcast, which no CUDA graph can hold; name others with --collective");
  EXPECT_TRUE(says(error_of("-G 8 --device cuda --collective barrier"), "the host takes part in barrier"));
  EXPECT_TRUE(says(error_of("-G -1 --device cuda"), "-G"));
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

// Source of the factors: NVIDIA's page on the performance of nccl-tests.
TEST(CollProblem, BusFactors) {
  EXPECT_DOUBLE_EQ(bus_factor(MeasuredCollective::kAllReduce, 4), 1.5);
  EXPECT_DOUBLE_EQ(bus_factor(MeasuredCollective::kReduceScatter, 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(MeasuredCollective::kAllGather, 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(MeasuredCollective::kAllToAll, 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(MeasuredCollective::kBroadcast, 4), 1);
  EXPECT_DOUBLE_EQ(bus_factor(MeasuredCollective::kAllReduce, 1), 0);
}

TEST(CollProblem, SharesAreEqualAndWhole) {
  const Problem gather = problem_of(MeasuredCollective::kAllGather, 100, DataType::kF32, ReduceOp::kMax, {}, 3);
  EXPECT_EQ(gather.count, 8U);  // 100 bytes / 4 bytes / 3 ranks, rounded down
  EXPECT_EQ(gather.in_count(3), 8U);
  EXPECT_EQ(gather.out_count(3), 24U);
  EXPECT_EQ(gather.bytes(3), 96U);
  EXPECT_EQ(gather.op, ReduceOp::kSum) << "no reduction: all of its operations are one cell";
  EXPECT_EQ(gather.footprint(3), 64U + 128U);
  const Problem small = problem_of(MeasuredCollective::kAllToAll, 1, DataType::kF64, ReduceOp::kSum, {}, 5);
  EXPECT_EQ(small.bytes(5), 40U) << "at least one element a share";
}

TEST(CollProblem, RaggedSharesGrowWithTheRank) {
  const Problem scatter =
      problem_of(MeasuredCollective::kReduceScatter, 100, DataType::kF32, ReduceOp::kSum, {.ragged = true}, 3);
  EXPECT_EQ(scatter.count, 4U) << "25 elements are 4 times 1 + 2 + 3 units";
  EXPECT_EQ(scatter.shares(3), (std::vector<std::size_t>{4, 8, 12}));
  EXPECT_EQ(scatter.in_count(3), 24U);
  EXPECT_EQ(scatter.out_count(3), 12U) << "of the last rank";
  EXPECT_EQ(scatter.before(2), 12U);
  const Problem exchange =
      problem_of(MeasuredCollective::kAllToAll, 100, DataType::kF32, ReduceOp::kSum, {.ragged = true}, 3);
  for (int rank = 0; rank < 3; ++rank) {
    std::size_t sent = 0, received = 0;
    for (int other = 0; other < 3; ++other) {
      sent += exchange.message(rank, other, 3);
      received += exchange.message(other, rank, 3);
    }
    EXPECT_EQ(sent, exchange.in_count(3));
    EXPECT_EQ(received, exchange.out_count(3));
  }
  EXPECT_FALSE(
      problem_of(MeasuredCollective::kAllReduce, 100, DataType::kF32, ReduceOp::kSum, {.ragged = true}, 3).ragged);
}

TEST(CollProblem, SizesOfAModelAreItsBuckets) {
  const BucketSizes buckets = bucket_sizes(gradients_of("resnet50"), DataType::kF32, {});
  ASSERT_FALSE(buckets.sizes.empty());
  EXPECT_TRUE(std::is_sorted(buckets.sizes.begin(), buckets.sizes.end()));
  // ResNet-50 has 25,557,032 parameters in fp32. Every bucket but the first and the last has at least 25 MiB.
  const std::size_t all = std::size_t{25557032} * sizeof(float);
  EXPECT_GE(buckets.sizes.back(), std::size_t{25} << 20);
  const auto sum = [](const BucketSizes& counted) {
    return std::inner_product(counted.sizes.begin(), counted.sizes.end(), counted.repeats.begin(), std::size_t{0});
  };
  EXPECT_GE(sum(buckets), all);
  EXPECT_LE(sum(buckets), all + all / 100) << "but for alignment";
  const BucketSizes half = bucket_sizes(gradients_of("resnet50"), DataType::kF16, {});
  EXPECT_NEAR(static_cast<double>(sum(half)), static_cast<double>(sum(buckets)) / 2, 1e4) << "half the bytes";
  EXPECT_GE(half.sizes.back(), std::size_t{25} << 20) << "in as large buckets";
  EXPECT_GT(bucket_sizes(gradients_of("resnet50"), DataType::kF32, {.bucket_bytes = 1 << 20}).sizes.size(),
            buckets.sizes.size());
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

// Reduces in two orders with the engine's own kernels, which compute in the element type. Both sums must be exact.
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
  std::vector<float> results(10, std::nanf(""));
  EXPECT_EQ(reduction_result(3, DataType::kF32, ReduceOp::kAverage).wrong(std::as_bytes(std::span(results)), 0), 10U);
}

TEST(CollCells, EachProblemOnceWithItsBareKernel) {
  CollOptions options = test::sizes_only();
  options.sizes.push_back(4097);  // 4097 bytes hold as many whole elements as 4096 bytes
  EXPECT_EQ(make_cells(options, 2, true).size(), 2U * 2 * 2) << "sizes, places, bare kernel";
  EXPECT_EQ(make_cells(options, 2, false).size(), 2U * 2) << "no bare kernel for several hosts";
  options.ops = {ReduceOp::kSum, ReduceOp::kMax};
  options.collectives = {MeasuredCollective::kAllGather};
  EXPECT_EQ(make_cells(options, 2, false).size(), 2U * 2);
  options.collectives = {MeasuredCollective::kBarrier};
  EXPECT_EQ(make_cells(options, 2, true).size(), 1U);
  options.collectives = {MeasuredCollective::kAllToAll};
  options.place = Place::kInPlace;
  EXPECT_THROW(make_cells(options, 2, true), Error);
}

TEST(CollCells, BuffersRotateThroughTwiceTheCache) {
  CollOptions options = test::sizes_only();
  const std::vector<Cell> cells = make_cells(options, 2, true);
  EXPECT_GE(arena_bytes(options, cells, 2, 1 << 20), (2U << 20) + 8192);
  options.warm = true;
  EXPECT_EQ(arena_bytes(options, cells, 2, 1 << 20), 8192U);
  EXPECT_EQ(arena_count(options, cells), 2U) << "registered, and plain for the bare kernel";
  options.variants.push_back({"second", {}, false});
  EXPECT_EQ(arena_count(options, cells), 2U);
}

TEST(CollCells, MemoryThatDoesNotFitIsRefusedWithASizeThatWould) {
  CollOptions options = test::sizes_only();
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
  CollOptions options = test::sizes_only();
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

/// Returns the offset of each operation's buffer, in bytes from the first buffer.
std::vector<std::ptrdiff_t> places_of(Places places, const Problem& problem, int operations) {
  Arena arena(1 << 16, places);
  comm::Topology topology;
  topology.size = 2;
  std::vector<std::ptrdiff_t> offsets;
  for (int i = 0; i < operations; ++i) offsets.push_back(arena.next(problem, topology).in - arena.bytes().data());
  return offsets;
}

TEST(CollArena, WarmOperationsStayInOnePlaceAndOthersRotate) {
  const Problem problem{MeasuredCollective::kAllReduce, 4096, DataType::kF32, ReduceOp::kSum,
                        true};  // buffers of 16 KiB
  EXPECT_EQ(places_of(Places::kFixed, problem, 3), (std::vector<std::ptrdiff_t>{0, 0, 0}));
  EXPECT_EQ(places_of(Places::kRotating, problem, 5), (std::vector<std::ptrdiff_t>{0, 16384, 32768, 49152, 0}));
}

}  // namespace
}  // namespace hvd::bench::coll_test
