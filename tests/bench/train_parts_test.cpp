// The parts of the training loop that need no ranks: hand-computed values.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "bench/train/batches.h"
#include "bench/train/checksum.h"
#include "bench/train/cores.h"
#include "bench/train/gradient_check.h"
#include "bench/train/memory.h"
#include "bench/train/message.h"
#include "bench/train/phase_log.h"
#include "bench/train/setup.h"
#include "engine/base/error.h"

namespace hvd::bench::train_parts_test {
namespace {

template <class T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// -- cores ----------------------------------------------------------------------------------------------

CoreSet cores(std::initializer_list<int> which, std::size_t size = 8) {
  CoreSet set(size, false);
  for (const int cpu : which) set[static_cast<std::size_t>(cpu)] = true;
  return set;
}

TEST(Cores, SharedByAllRanksOfAHost) {
  const std::vector<CoreSet> all(2, cores({0, 1, 2, 3, 4, 5}));
  const CoreShare share = share_cores(all, std::vector<int>{0, 0}, 0);
  EXPECT_EQ(share.threads, 3);
  EXPECT_FALSE(share.spare_core);
  EXPECT_TRUE(share_cores(all, std::vector<int>{0, 0}, 2).spare_core);
}

TEST(Cores, BoundRanksKeepTheirOwn) {
  const std::vector<CoreSet> all{cores({0, 1}), cores({2, 3, 4})};
  EXPECT_EQ(share_cores(all, std::vector<int>{0, 0}, 0).threads, 2) << "the smallest share";
  EXPECT_TRUE(share_cores(all, std::vector<int>{0, 0}, 0).spare_core) << "core 4";
}

TEST(Cores, HostsDoNotShare) {
  const std::vector<CoreSet> all(4, cores({0, 1}));
  EXPECT_EQ(share_cores(all, std::vector<int>{0, 1, 2, 3}, 0).threads, 2);
  EXPECT_EQ(share_cores(all, std::vector<int>{0, 0, 0, 1}, 0).threads, 1) << "never none";
}

TEST(Cores, ThisProcessHasSome) {
  const CoreSet mine = available_cores();
  EXPECT_NE(std::count(mine.begin(), mine.end(), true), 0);
}

// -- messages ---------------------------------------------------------------------------------------------

TEST(Message, DirectiveRoundTrip) {
  const Directive sent{Task::kSteps, Phase::kSolo, 17, 1, true, true, Errc::kCheckFailed, "why"};
  const Directive got = decode_directive(encode(sent));
  EXPECT_EQ(got.task, sent.task);
  EXPECT_EQ(got.phase, sent.phase);
  EXPECT_EQ(got.steps, 17);
  EXPECT_EQ(got.discard, 1);
  EXPECT_TRUE(got.new_graphs);
  EXPECT_TRUE(got.failed);
  EXPECT_EQ(got.code, Errc::kCheckFailed);
  EXPECT_EQ(got.text, "why");
}

TEST(Message, AnswerRoundTripAndTruncation) {
  Answer sent;
  sent.signal = "SIGTERM";
  sent.samples.step = {1, 2};
  sent.samples.loss = {3};
  sent.gradient_checksums = {~std::uint64_t{0}};
  sent.peak_bytes = 5;
  sent.bucket_seconds = {0.5};
  sent.problem = "p";
  sent.note = "n";
  const std::vector<std::byte> bytes = encode(sent);
  const Answer got = decode_answer(bytes);
  EXPECT_EQ(got.signal, sent.signal);
  EXPECT_EQ(got.samples.step, sent.samples.step);
  EXPECT_EQ(got.samples.loss, sent.samples.loss);
  EXPECT_TRUE(got.samples.compute.empty());
  EXPECT_EQ(got.gradient_checksums, sent.gradient_checksums);
  EXPECT_EQ(got.peak_bytes, 5);
  EXPECT_EQ(got.bucket_seconds, sent.bucket_seconds);
  EXPECT_EQ(got.problem + got.note, "pn");
  for (std::size_t n = 0; n < bytes.size(); ++n) {
    EXPECT_THROW((void)decode_answer(std::span(bytes).first(n)), std::logic_error) << n;
  }
}

// -- samples ------------------------------------------------------------------------------------------------

std::vector<Answer> answers(const std::vector<std::vector<double>>& ranks) {
  std::vector<Answer> out(ranks.size());
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    for (const auto series : kSampleSeries) out[r].samples.*series = ranks[r];
  }
  return out;
}

TEST(PhaseLog, SamplesAreMeansOfStepsAndTheSlowestRankCounts) {
  PhaseLog log(2, 2);
  log.add(answers({{1, 3, 5}, {2, 0, 4}}));
  EXPECT_EQ(log.samples(), 1U);
  log.add(answers({{7}, {10}}));
  ASSERT_EQ(log.samples(), 2U);
  EXPECT_EQ(log.ranks()[0].step, (std::vector<double>{2, 6}));
  EXPECT_EQ(log.ranks()[1].loss, (std::vector<double>{1, 7}));
  EXPECT_EQ(log.slowest(), (std::vector<double>{2, 7}));
  EXPECT_EQ(log.since(1)[0].update, (std::vector<double>{6}));
}

TEST(PhaseLog, AVisitsUnfinishedSampleIsDropped) {
  PhaseLog log(1, 2);
  log.add(answers({{1, 1, 9}}));
  log.end_of_visit();
  log.add(answers({{2, 4}}));
  EXPECT_EQ(log.slowest(), (std::vector<double>{1, 3}));
}

// -- checksum -------------------------------------------------------------------------------------------------

TEST(ChecksumTest, EveryByteAndTheLengthCount) {
  std::vector<std::byte> data(77);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * 7);
  const std::uint64_t sum = Checksum().add(data).value();
  EXPECT_EQ(sum, Checksum().add(data).value());
  for (std::size_t i = 0; i < data.size(); ++i) {
    data[i] ^= std::byte{1};
    EXPECT_NE(Checksum().add(data).value(), sum) << i;
    data[i] ^= std::byte{1};
  }
  EXPECT_NE(Checksum().add(std::vector<std::byte>(32)).value(), Checksum().add(std::vector<std::byte>(64)).value());
  std::swap(data[0], data[32]);
  EXPECT_NE(Checksum().add(data).value(), sum) << "order counts";
}

// -- check of the reduction -------------------------------------------------------------------------------------

std::vector<models::ArenaSlot> two_slots() {
  return {{.name = "a", .offset = 0, .count = 10, .shape = {10}},
          {.name = "b", .offset = 16, .count = 3, .shape = {3}}};
}

TEST(GradientPieces, AllOfThemWhereAffordable) {
  const auto pieces = choose_pieces(two_slots(), 13, 1, 4);
  ASSERT_EQ(pieces.size(), 4U);
  EXPECT_EQ(pieces[1].offset, 4U);
  EXPECT_EQ(pieces[2].count, 2U) << "8 and 9";
  EXPECT_EQ(pieces[3].parameter, 1U);
  EXPECT_EQ(pieces[3].offset, 16U);
}

TEST(GradientPieces, EndsOfEveryTensorAlways) {
  const auto pieces = choose_pieces(two_slots(), 0, 1, 4);
  ASSERT_EQ(pieces.size(), 3U);
  EXPECT_EQ(pieces[0].offset, 0U);
  EXPECT_EQ(pieces[1].offset, 8U);
  EXPECT_EQ(pieces[2].offset, 16U);
}

std::string compare(const std::vector<std::vector<float>>& ranks, const std::vector<float>& reduced, ReduceOp op) {
  std::vector<std::vector<std::byte>> bytes;
  for (const auto& rank : ranks) bytes.push_back(bytes_of(rank));
  const std::vector<std::span<const std::byte>> local(bytes.begin(), bytes.end());
  return compare_piece(local, bytes_of(reduced), DataType::kF32, op);
}

TEST(ComparePiece, SumAndAverage) {
  EXPECT_EQ(compare({{1, 2}, {3, -2}}, {4, 0}, ReduceOp::kSum), "");
  EXPECT_EQ(compare({{1, 2}, {3, -2}}, {2, 0}, ReduceOp::kAverage), "");
  EXPECT_NE(compare({{1, 2}, {3, -2}}, {2, 0}, ReduceOp::kSum).find("element 0 is 2"), std::string::npos);
}

TEST(ComparePiece, AllowsRoundingAndNoMore) {
  // Three values of 1: bound (3 + 2) * 2^-24 * 3 = 8.9e-7; a float of 3 has steps of 2.4e-7.
  const float up = std::nextafter(3.0F, 4.0F);
  EXPECT_EQ(compare({{1}, {1}, {1}}, {up}, ReduceOp::kSum), "");
  EXPECT_NE(compare({{1}, {1}, {1}}, {3.000001F}, ReduceOp::kSum), "");
  // Cancellation: the magnitudes bound the error, not the sum.
  EXPECT_EQ(compare({{1e6F}, {-1e6F}}, {0.1F}, ReduceOp::kSum), "");
  EXPECT_NE(compare({{1e6F}, {-1e6F}}, {1.0F}, ReduceOp::kSum), "");
  EXPECT_NE(compare({{0}, {0}}, {1e-30F}, ReduceOp::kSum), "");
}

TEST(ComparePiece, NamesTheRankThatIsNotFinite) {
  const std::string text = compare({{1}, {std::numeric_limits<float>::quiet_NaN()}}, {1}, ReduceOp::kSum);
  EXPECT_NE(text.find("not a finite number on rank 1"), std::string::npos) << text;
  EXPECT_NE(compare({{1}, {1}}, {std::numeric_limits<float>::quiet_NaN()}, ReduceOp::kSum), "");
}

TEST(ComparePiece, Bf16) {
  const std::vector<std::uint16_t> one{0x3f80};
  const std::vector<std::uint16_t> two{0x4000};
  const std::vector<std::byte> local = bytes_of(one);
  const std::vector<std::span<const std::byte>> ranks{local, local};
  EXPECT_EQ(compare_piece(ranks, bytes_of(two), DataType::kBF16, ReduceOp::kSum), "");
  EXPECT_NE(compare_piece(ranks, bytes_of(one), DataType::kBF16, ReduceOp::kSum), "");
}

TEST(ChecksumDifference, NamesRanksAndTheFirstTensor) {
  const auto slots = two_slots();
  using Sums = std::vector<std::vector<std::uint64_t>>;
  EXPECT_EQ(checksum_difference(Sums{{1, 2}, {1, 2}}, slots), "");
  EXPECT_EQ(checksum_difference(Sums{{1, 2}, {1, 2}, {1, 3}}, slots), "rank 2 differs from rank 0 in b");
  EXPECT_EQ(checksum_difference(Sums{{1, 2}, {9, 2}, {1, 3}}, slots), "ranks 1 and 2 differ from rank 0 in a");
}

// -- data, memory, wishes -------------------------------------------------------------------------------------

TEST(Batches, TheWorldSeesTheSameSamplesHoweverDivided) {
  const models::SyntheticSpec spec{.seed = 3, .image_elements = 12, .classes = 5};
  const SyntheticBatches one(spec, 4, 2, {0, 1});
  for (const std::uint64_t step : {0U, 1U, 5U}) {
    const models::Batch whole = one.at(step);
    for (int rank = 0; rank < 2; ++rank) {
      const SyntheticBatches half(spec, 2, 2, {rank, 2});
      const models::Batch part = half.at(step);
      EXPECT_EQ(part.first_sample, whole.first_sample + 2 * static_cast<std::uint64_t>(rank));
      const auto images = whole.images.subspan(24 * static_cast<std::size_t>(rank), 24);
      EXPECT_TRUE(std::equal(images.begin(), images.end(), part.images.begin(), part.images.end()));
      EXPECT_EQ(part.labels[0], whole.labels[2 * static_cast<std::size_t>(rank)]);
    }
  }
  EXPECT_EQ(one.bytes(), 2 * (4 * 12 * sizeof(float) + 4 * sizeof(std::int32_t)));
}

TEST(Batches, AsManyAsAreCheap) {
  EXPECT_EQ(batches_to_cycle(8, 3 * 224 * 224), 4);
  EXPECT_EQ(batches_to_cycle(64, 3 * 299 * 299), 1);
  EXPECT_EQ(batches_to_cycle(64, 3 * 224 * 224), 3);
}

TEST(Memory, RefusesWithTheBatchThatFits) {
  const MemoryForecast forecast{.fixed_bytes = 1'000'000'000, .per_image_bytes = 100'000'000, .batch_size = 64};
  EXPECT_NO_THROW(refuse_if_too_big(forecast, 1, 7'400'000'000));
  EXPECT_NO_THROW(refuse_if_too_big(forecast, 4, 0)) << "unknown";
  try {
    refuse_if_too_big(forecast, 2, 8'000'000'000);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kOutOfMemory);
    const std::string text = error.what();
    EXPECT_NE(text.find("batch 64 needs at least 7.4 GB per rank, 14.8 GB for the 2 ranks"), std::string::npos) << text;
    EXPECT_NE(text.find("--batch-size 27 "), std::string::npos) << text;  // 0.9 * (4 - 1) GB / 0.1 GB
  }
  EXPECT_THROW(refuse_if_too_big(forecast, 8, 8'000'000'000), Error) << "no image fits";
}

TEST(Memory, ThisHostHasSome) { EXPECT_GT(available_bytes(), 0); }

Errc refused(const Options& options) {
  try {
    (void)settle(options);
  } catch (const Error& error) {
    return error.code();
  }
  ADD_FAILURE() << "not refused";
  return Errc::kBackend;
}

TEST(Setup, DefaultsAndRefusals) {
  Options options;
  const auto setup = settle(options);  // gtest keeps the name Setup for itself
  EXPECT_EQ(setup.model.model, "resnet101");
  EXPECT_EQ(setup.model.batch_size, 8);
  EXPECT_EQ(setup.model.image_size, 224);
  EXPECT_EQ(setup.gradient, DataType::kF32);
  EXPECT_EQ(setup.main_phase(), Phase::kFull);
  EXPECT_EQ(setup.notes.size(), 1U) << "the batch was chosen for the user";

  options.device = Device::kCuda;
  EXPECT_EQ(refused(options), Errc::kUnsupported);
  options = {};
  options.comm = CommBackend::kNccl;
  EXPECT_EQ(refused(options), Errc::kUnsupported);
  options = {};
  options.model = "lenet";
  EXPECT_EQ(refused(options), Errc::kInvalidArgument);
  options = {};
  options.comm = CommBackend::kNone;
  EXPECT_FALSE(settle(options).reduces());
  options.efficiency = true;
  EXPECT_EQ(refused(options), Errc::kInvalidArgument);
  options = {};
  options.replay_file = "/nonexistent/profile";
  EXPECT_EQ(refused(options), Errc::kIo);
}

}  // namespace
}  // namespace hvd::bench::train_parts_test
