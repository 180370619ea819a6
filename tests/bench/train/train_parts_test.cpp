// Tests the parts of the training loop that need no ranks. Expected values are computed by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "bench/session/gradient_check.h"
#include "bench/session/message.h"
#include "bench/train/checksum.h"
#include "bench/train/trainer.h"
#include "bench/world/memory.h"
#include "bench/world/setup.h"
#include "engine/base/error.h"
#include "tests/bench/scratch.h"

namespace hvd::bench::train_parts_test {
namespace {

template <class T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// -- messages ---------------------------------------------------------------------------------------------

TEST(Turns, OfTheRanksOfAHostInTheirOrder) {
  const Turn second{.number = 1, .ranks_at_once = 2};
  std::vector<int> ranks;
  for (int local = 0; local < 6; ++local) {
    if (second.is_of(local)) ranks.push_back(local);
  }
  EXPECT_EQ(ranks, (std::vector<int>{2, 3}));
}

TEST(Message, DirectiveRoundTrip) {
  const Directive sent{Task::kSteps, Phase::kSolo, 17, 1, true, true, Errc::kCheckFailed, "why", {2, 3}, 9};
  const Directive got = decode_directive(encode(sent));
  EXPECT_EQ(got.task, sent.task);
  EXPECT_EQ(got.phase, sent.phase);
  EXPECT_EQ(got.steps, 17);
  EXPECT_EQ(got.discard, 1);
  EXPECT_TRUE(got.new_graphs);
  EXPECT_TRUE(got.failed);
  EXPECT_EQ(got.code, Errc::kCheckFailed);
  EXPECT_EQ(got.text, "why");
  EXPECT_EQ(got.turn.number, 2);
  EXPECT_EQ(got.turn.ranks_at_once, 3);
  EXPECT_EQ(got.snapshot, 9U);
}

TEST(Message, AnswerRoundTripAndTruncation) {
  Answer sent;
  sent.signal = "SIGTERM";
  sent.samples.step = {1, 2};
  sent.samples.loss = {3};
  sent.gradient_checksums = {~std::uint64_t{0}};
  sent.snapshot_checksums = {7, 8};
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
  EXPECT_EQ(got.snapshot_checksums, sent.snapshot_checksums);
  EXPECT_EQ(got.peak_bytes, 5);
  EXPECT_EQ(got.bucket_seconds, sent.bucket_seconds);
  EXPECT_EQ(got.problem + got.note, "pn");
  for (std::size_t n = 0; n < bytes.size(); ++n) {
    EXPECT_THROW((void)decode_answer(std::span(bytes).first(n)), std::logic_error) << n;
  }
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
  return compare_piece(local, bytes_of(reduced), DataType::kF32, DataType::kF32, op);
}

TEST(ComparePiece, SumAndAverage) {
  EXPECT_EQ(compare({{1, 2}, {3, -2}}, {4, 0}, ReduceOp::kSum), "");
  EXPECT_EQ(compare({{1, 2}, {3, -2}}, {2, 0}, ReduceOp::kAverage), "");
  EXPECT_NE(compare({{1, 2}, {3, -2}}, {2, 0}, ReduceOp::kSum).find("element 0 is 2"), std::string::npos);
}

TEST(ComparePiece, AllowsRoundingAndNoMore) {
  // The bound for three values of 1 is (3 + 2) * 2^-24 * 3 = 8.9e-7. Neighbouring floats near 3 are 2.4e-7 apart.
  const float up = std::nextafter(3.0F, 4.0F);
  EXPECT_EQ(compare({{1}, {1}, {1}}, {up}, ReduceOp::kSum), "");
  EXPECT_NE(compare({{1}, {1}, {1}}, {3.000001F}, ReduceOp::kSum), "");
  // If values cancel, the bound follows from the magnitudes of the values and not from the sum of the values.
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
  const std::vector<std::uint16_t> one_value{0x3f80};
  const std::vector<std::uint16_t> two{0x4000};
  const std::vector<std::byte> local = bytes_of(one_value);
  const std::vector<std::span<const std::byte>> ranks{local, local};
  EXPECT_EQ(compare_piece(ranks, bytes_of(two), DataType::kBF16, DataType::kBF16, ReduceOp::kSum), "");
  EXPECT_NE(compare_piece(ranks, bytes_of(one_value), DataType::kBF16, DataType::kBF16, ReduceOp::kSum), "");
}

TEST(ComparePiece, SumsThatTravelInBf16) {
  // The bound for two values of 1 + 2^-9 is (2 + 2) * 2^-8 * 2 = 0.031. Neighbouring bf16 values near 2 are 2^-6 apart.
  const std::vector<std::byte> local = bytes_of(std::vector<float>{1.001953125F});
  const std::vector<std::span<const std::byte>> ranks{local, local};
  const auto compared = [&](float sum, DataType sum_type) {
    return compare_piece(ranks, bytes_of(std::vector<float>{sum}), DataType::kF32, sum_type, ReduceOp::kSum);
  };
  EXPECT_EQ(compared(2.0F, DataType::kBF16), "");
  EXPECT_NE(compared(2.0F, DataType::kF32), "");
  EXPECT_NE(compared(2.0625F, DataType::kBF16), "");
}

TEST(ChecksumDifference, NamesRanksAndTheFirstTensor) {
  const auto slots = two_slots();
  using Sums = std::vector<std::vector<std::uint64_t>>;
  EXPECT_EQ(checksum_difference(Sums{{1, 2}, {1, 2}}, slots), "");
  EXPECT_EQ(checksum_difference(Sums{{1, 2}, {1, 2}, {1, 3}}, slots), "rank 2 differs from rank 0 in b");
  EXPECT_EQ(checksum_difference(Sums{{1, 2}, {9, 2}, {1, 3}}, slots), "ranks 1 and 2 differ from rank 0 in a");
}

// -- data, memory, settings -------------------------------------------------------------------------------------

TEST(Batches, TheWorldSeesTheSameSamplesHoweverDivided) {
  const models::SyntheticSpec spec{.seed = 3, .image_elements = 12, .classes = 5};
  SyntheticBatches one_rank(spec, 4, 2, {0, 1});
  for (const std::uint64_t step : {0U, 1U, 5U}) {
    const models::Batch whole = one_rank.at(step);
    for (int rank = 0; rank < 2; ++rank) {
      SyntheticBatches half(spec, 2, 2, {rank, 2});
      const models::Batch part = half.at(step);
      EXPECT_EQ(part.first_sample, whole.first_sample + 2 * static_cast<std::uint64_t>(rank));
      const auto images = whole.images.subspan(24 * static_cast<std::size_t>(rank), 24);
      EXPECT_TRUE(std::equal(images.begin(), images.end(), part.images.begin(), part.images.end()));
      const auto labels = whole.labels.subspan(2 * static_cast<std::size_t>(rank), 2);
      EXPECT_TRUE(std::equal(labels.begin(), labels.end(), part.labels.begin(), part.labels.end()));
    }
  }
  EXPECT_EQ(one_rank.bytes(), 2 * 4 * 12 * sizeof(float) + 4 * sizeof(std::int32_t));
}

std::vector<std::int32_t> labels_at(SyntheticBatches& batches, std::uint64_t step) {
  const models::Batch batch = batches.at(step);
  return {batch.labels.begin(), batch.labels.end()};
}

// A label depends only on the number of its sample, not on the step or the rank. Four ranks with batch 2 therefore see
// the labels of one rank with batch 8, although later steps repeat the images of earlier steps.
TEST(Batches, LabelsAreNewInEveryStepAndFollowTheSample) {
  const models::SyntheticSpec spec{.seed = 3, .image_elements = 12, .classes = 1000};
  std::vector<std::int32_t> expected(8 * 6);
  models::synthetic_labels(spec, 0, expected);
  SyntheticBatches one_rank(spec, 8, 2, {0, 1});
  for (std::uint64_t step = 0; step < 6; ++step) {
    const auto begin = expected.begin() + static_cast<std::ptrdiff_t>(8 * step);
    EXPECT_EQ(labels_at(one_rank, step), std::vector<std::int32_t>(begin, begin + 8)) << "step " << step;
    std::vector<std::int32_t> four;
    for (int rank = 0; rank < 4; ++rank) {
      SyntheticBatches part(spec, 2, 2, {rank, 4});
      for (const std::int32_t label : labels_at(part, step)) four.push_back(label);
    }
    EXPECT_EQ(four, labels_at(one_rank, step)) << "step " << step;
  }
  EXPECT_EQ(one_rank.at(0).content, one_rank.at(2).content) << "of the images";
  EXPECT_EQ(one_rank.at(0).images.data(), one_rank.at(2).images.data());
  EXPECT_NE(labels_at(one_rank, 0), labels_at(one_rank, 2));
}

TEST(Batches, LabelsThatCycleAreThoseOfOldRecords) {
  const models::SyntheticSpec spec{.seed = 3, .image_elements = 12, .classes = 1000};
  SyntheticBatches cycled(spec, 4, 2, {1, 2}, models::LabelRule::kCycled);
  for (std::uint64_t step = 0; step < 6; ++step) {
    std::vector<float> images(4 * 12);
    std::vector<std::int32_t> labels(4);
    models::synthetic_batch(spec, ((step % 2) * 2 + 1) * 4, images, labels);
    EXPECT_EQ(labels_at(cycled, step), labels) << "step " << step;
  }
}

TEST(LearningRate, GrowsWithTheRanksGraduallyAndToABound) {
  const RateScaling scaling{.warm_up_steps = 10, .bound = 0.05};
  EXPECT_DOUBLE_EQ(scaled_learning_rate(0.01, 1, scaling), 0.01);
  EXPECT_DOUBLE_EQ(scaled_learning_rate(0.01, 4, scaling), 0.04);
  EXPECT_DOUBLE_EQ(scaled_learning_rate(0.01, 512, scaling), 0.05);
  EXPECT_DOUBLE_EQ(scaled_learning_rate(0.5, 512, scaling), 0.5) << "asked for";
  EXPECT_DOUBLE_EQ(learning_rate_of_step(0.01, 4, 0, scaling), 0.01);
  EXPECT_DOUBLE_EQ(learning_rate_of_step(0.01, 4, 5, scaling), 0.025);
  EXPECT_DOUBLE_EQ(learning_rate_of_step(0.01, 4, 10, scaling), 0.04);
  EXPECT_DOUBLE_EQ(learning_rate_of_step(0.01, 4, 1000, scaling), 0.04);
  EXPECT_DOUBLE_EQ(learning_rate_of_step(0.01, 512, 5, scaling), 0.03);
  EXPECT_DOUBLE_EQ(learning_rate_of_step(0.01, 1, 5, scaling), 0.01);
  EXPECT_DOUBLE_EQ(learning_rate_of_step(0.01, 4, 0, {.warm_up_steps = 0, .bound = 1}), 0.04);
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
  const std::string text = test::error_of(Errc::kOutOfMemory, [&] { refuse_if_too_big(forecast, 2, 8'000'000'000); });
  EXPECT_NE(text.find("batch 64 needs at least 7.4 GB per rank, 14.8 GB for the 2 ranks"), std::string::npos) << text;
  EXPECT_NE(text.find("--batch-size 27 "), std::string::npos) << text;  // 90 % of (4 - 1) GB / 0.1 GB per image
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
  const auto setup = settle(options);  // `auto`, because testing::Test::Setup hides the name
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
