// Tests the oneDNN TrainStep through its interface: arenas, order of gradients, update, determinism, memory, errors.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "models/graph/autodiff.h"
#include "models/random.h"
#include "models/train_step.h"
#include "models/zoo/zoo.h"
#include "tests/models/testing.h"

namespace hvd::models::step_test {
namespace {

using testing::expect_error;
using testing::RecordingSink;

struct Data {
  std::vector<float> images;
  std::vector<std::int32_t> labels;
  [[nodiscard]] Batch batch(std::uint64_t step = 0) const {
    return {.images = images, .labels = labels, .first_sample = 0, .step = step};
  }
};

Data data_for(const ModelSpec& spec) {
  const auto pixels = static_cast<std::size_t>(spec.image_size * spec.image_size * 3);
  const auto batch = static_cast<std::size_t>(spec.batch_size);
  Data data{.images = std::vector<float>(batch * pixels), .labels = std::vector<std::int32_t>(batch)};
  synthetic_batch({.seed = 2, .image_elements = static_cast<std::int64_t>(pixels), .classes = spec.classes}, 0,
                  data.images, data.labels);
  return data;
}

const ModelSpec kSmall{.model = "resnet50", .batch_size = 2, .image_size = 32, .classes = 10, .auxiliary_head = false};

struct Trainer {
  explicit Trainer(const ModelSpec& spec, const StepOptions& options = {})
      : arena(make_heap_arena()),
        step(make_onednn_step(differentiate(build_model(spec)), options, arena.allocate)),
        data(data_for(spec)) {}

  std::vector<float> parameter(std::size_t i) const {
    std::vector<float> values(static_cast<std::size_t>(step->slots()[i].shape.count()));
    step->read_parameter(i, values);
    return values;
  }
  std::vector<float> gradient(std::size_t i) const {
    std::vector<float> values(static_cast<std::size_t>(step->slots()[i].shape.count()));
    step->read_gradient(i, values);
    return values;
  }
  double run(std::uint64_t n = 0) {
    RecordingSink sink;
    return step->forward_backward(data.batch(n), sink);
  }

  HeapArena arena;
  std::unique_ptr<TrainStep> step;
  Data data;
};

TEST(OnednnStep, SlotsAreInGradientOrderAlignedAndDisjoint) {
  const Graph graph = differentiate(build_model(kSmall));
  Trainer trainer(kSmall);
  const auto slots = trainer.step->slots();
  ASSERT_EQ(slots.size(), graph.parameters.size());
  std::size_t end = 0;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    EXPECT_EQ(slots[i].name, graph.parameters[i].name);
    EXPECT_EQ(slots[i].offset * sizeof(float) % 64, 0U) << slots[i].name;
    EXPECT_GE(slots[i].offset, end) << slots[i].name;
    EXPECT_GE(slots[i].count, static_cast<std::size_t>(slots[i].shape.count()));
    end = slots[i].offset + slots[i].count;
  }
  EXPECT_GE(trainer.step->gradient_arena().size(), end * sizeof(float));
}

TEST(OnednnStep, TellsEachGradientOnceInOrder) {
  Trainer trainer(kSmall);
  RecordingSink sink;
  (void)trainer.step->forward_backward(trainer.data.batch(), sink);
  ASSERT_EQ(sink.ready.size(), trainer.step->slots().size());
  for (std::size_t i = 0; i < sink.ready.size(); ++i) EXPECT_EQ(sink.ready[i], i);
}

// After the step has announced a gradient, the gradient must not change, because other ranks may already receive it.
TEST(OnednnStep, AnAnnouncedGradientIsFinal) {
  Trainer trainer(kSmall);
  const auto slots = trainer.step->slots();
  const auto arena = trainer.step->gradient_arena();
  std::vector<std::byte> announced(arena.size());
  class Copy final : public GradientSink {
   public:
    Copy(std::span<const ArenaSlot> all, std::span<const std::byte> from, std::span<std::byte> to)
        : all_(all), from_(from), to_(to) {}
    void gradient_ready(std::size_t i) override {
      std::memcpy(to_.data() + all_[i].offset * 4, from_.data() + all_[i].offset * 4, all_[i].count * 4);
    }

   private:
    std::span<const ArenaSlot> all_;
    std::span<const std::byte> from_;
    std::span<std::byte> to_;
  } sink(slots, arena, announced);
  (void)trainer.step->forward_backward(trainer.data.batch(), sink);
  for (const ArenaSlot& slot : slots) {
    EXPECT_EQ(std::memcmp(announced.data() + slot.offset * 4, arena.data() + slot.offset * 4, slot.count * 4), 0)
        << slot.name;
  }
}

TEST(OnednnStep, ReadsBackWhatWasWritten) {
  Trainer trainer(kSmall);
  for (const std::size_t i : {std::size_t{0}, std::size_t{7}, trainer.step->slots().size() - 1}) {
    std::vector<float> values(static_cast<std::size_t>(trainer.step->slots()[i].shape.count()));
    for (std::size_t k = 0; k < values.size(); ++k) values[k] = static_cast<float>(k % 1000) * 0.25F;
    trainer.step->write_parameter(i, values);
    EXPECT_EQ(trainer.parameter(i), values) << trainer.step->slots()[i].name;
  }
}

// Compares two updates with the formula in double. The momentum takes effect only in the second update.
void check_update(DataType compute, DataType gradient) {
  if (const std::string reason = onednn_unsupported_reason(compute); !reason.empty()) GTEST_SKIP() << reason;
  Trainer trainer(kSmall, {.compute = compute, .gradient = gradient});
  const Graph graph = differentiate(build_model(kSmall));
  const SgdOptions sgd{.learning_rate = 0.03, .momentum = 0.9, .weight_decay = 1e-2, .gradient_scale = 0.25};
  const std::size_t count = graph.parameters.size();
  std::vector<std::vector<double>> momentum(count);
  for (int round = 0; round < 2; ++round) {
    (void)trainer.run(static_cast<std::uint64_t>(round));
    std::vector<std::vector<float>> before(count), gradients(count);
    for (std::size_t i = 0; i < count; ++i) {
      before[i] = trainer.parameter(i);
      gradients[i] = trainer.gradient(i);
    }
    trainer.step->update(sgd);
    for (std::size_t i = 0; i < count; ++i) {
      const double decay = graph.parameters[i].decay ? sgd.weight_decay : 0;
      const std::vector<float> after = trainer.parameter(i);
      momentum[i].resize(after.size());
      double worst = 0;
      for (std::size_t k = 0; k < after.size(); ++k) {
        const double g = sgd.gradient_scale * gradients[i][k] + decay * before[i][k];
        momentum[i][k] = sgd.momentum * momentum[i][k] + g;
        const double expected = before[i][k] - sgd.learning_rate * momentum[i][k];
        // The momentum has three roundings, each at most the rounding of the sum of its terms. The weight has one
        // rounding.
        const double terms = std::abs(sgd.gradient_scale * gradients[i][k]) + std::abs(decay * before[i][k]) +
                             2 * std::abs(momentum[i][k]);
        const double bound =
            0x1p-23 * (std::abs(before[i][k]) + std::abs(expected) + 4 * sgd.learning_rate * terms) + 1e-38;
        worst = std::max(worst, std::abs(after[k] - expected) / bound);
      }
      EXPECT_LE(worst, 1.0) << trainer.step->slots()[i].name << " in round " << round;
    }
  }
}

TEST(OnednnStep, UpdateIsSgdWithMomentumAndDecayFp32) { check_update(DataType::kF32, DataType::kF32); }
TEST(OnednnStep, UpdateIsSgdWithMomentumAndDecayFp32WithBf16Gradients) {
  check_update(DataType::kF32, DataType::kBF16);
}
TEST(OnednnStep, UpdateIsSgdWithMomentumAndDecayBf16) { check_update(DataType::kBF16, DataType::kF32); }
TEST(OnednnStep, UpdateIsSgdWithMomentumAndDecayBf16WithBf16Gradients) {
  check_update(DataType::kBF16, DataType::kBF16);
}

// In some layouts a part of the memory holds no element of the tensor. This padding must stay zero. Otherwise sums over
// the arena drift.
TEST(OnednnStep, PaddingStaysZero) {
  Trainer trainer(kSmall);
  (void)trainer.run();
  trainer.step->update({});
  const auto slots = trainer.step->slots();
  const auto arena = trainer.step->gradient_arena();
  const auto* gradients = reinterpret_cast<const float*>(arena.data());
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const auto logical = trainer.gradient(i);
    const auto nonzero = [](float v) { return v != 0; };
    EXPECT_EQ(std::count_if(logical.begin(), logical.end(), nonzero),
              std::count_if(gradients + slots[i].offset, gradients + slots[i].offset + slots[i].count, nonzero))
        << slots[i].name;
  }
}

void check_identical(const ModelSpec& spec, const StepOptions& options) {
  if (const std::string reason = onednn_unsupported_reason(options.compute); !reason.empty()) GTEST_SKIP() << reason;
  Trainer a(spec, options);
  Trainer b(spec, options);
  for (std::uint64_t n = 0; n < 2; ++n) {
    EXPECT_EQ(a.run(n), b.run(n));
    a.step->update({});
    b.step->update({});
  }
  const auto left = a.step->state_to_broadcast();
  const auto right = b.step->state_to_broadcast();
  ASSERT_EQ(left.size(), right.size());
  for (std::size_t i = 0; i < left.size(); ++i) {
    ASSERT_EQ(left[i].size(), right[i].size());
    if (left[i].empty()) continue;  // a network without running statistics; memcmp takes no null pointer
    EXPECT_EQ(std::memcmp(left[i].data(), right[i].data(), left[i].size()), 0);
  }
}

TEST(OnednnStep, TwoRunsAreBitIdentical) { check_identical(kSmall, {.threads = 1}); }
TEST(OnednnStep, TwoRunsAreBitIdenticalOnTwoThreads) { check_identical(kSmall, {.threads = 2}); }
TEST(OnednnStep, TwoRunsAreBitIdenticalInBf16) {
  check_identical({"inception3", 2, 75, 10, false}, {.compute = DataType::kBF16});
}
TEST(OnednnStep, TwoRunsOfVggWithDropoutAreBitIdentical) { check_identical({"vgg16", 2, 32, 10, false}, {}); }

TEST(OnednnStep, ABroadcastStateContinuesAlike) {
  Trainer a(kSmall, {.seed = 1});
  Trainer b(kSmall, {.seed = 9});
  EXPECT_NE(a.run(), b.run());
  const auto from = a.step->state_to_broadcast();
  const auto to = b.step->state_to_broadcast();
  for (std::size_t i = 0; i < from.size(); ++i) std::copy(from[i].begin(), from[i].end(), to[i].begin());
  b.step->state_changed();
  EXPECT_EQ(a.run(1), b.run(1));
  for (std::size_t i = 0; i < a.step->slots().size(); ++i) EXPECT_EQ(a.gradient(i), b.gradient(i));
}

// update() writes bf16 copies of the weights in pieces. state_changed() writes whole copies. Both copies must be equal.
void expect_copies_of_the_update_to_be_whole(const ModelSpec& spec, int threads) {
  if (const std::string reason = onednn_unsupported_reason(DataType::kBF16); !reason.empty()) GTEST_SKIP() << reason;
  Trainer trained(spec, {.compute = DataType::kBF16, .threads = threads, .seed = 1});
  Trainer copied(spec, {.compute = DataType::kBF16, .threads = threads, .seed = 1});
  (void)trained.run();
  trained.step->update({.learning_rate = 0.1, .momentum = 0.9, .weight_decay = 1e-4, .gradient_scale = 1.0});
  const auto from = trained.step->state_to_broadcast();
  const auto to = copied.step->state_to_broadcast();
  for (std::size_t i = 0; i < from.size(); ++i) std::copy(from[i].begin(), from[i].end(), to[i].begin());
  copied.step->state_changed();
  EXPECT_EQ(trained.run(1), copied.run(1));
  const auto made = trained.step->gradient_arena(), expected = copied.step->gradient_arena();
  EXPECT_TRUE(std::equal(made.begin(), made.end(), expected.begin(), expected.end()));
}
// With three threads, the part of the weights that a thread updates begins in the middle of a strip.
TEST(OnednnStep, TheUpdateWritesWholeCopies) { expect_copies_of_the_update_to_be_whole(kSmall, 1); }
TEST(OnednnStep, TheUpdateWritesWholeCopiesOnThreeThreads) { expect_copies_of_the_update_to_be_whole(kSmall, 3); }
TEST(OnednnStep, TheUpdateWritesWholeCopiesOfVgg) {
  expect_copies_of_the_update_to_be_whole(
      {.model = "vgg16", .batch_size = 2, .image_size = 32, .classes = 10, .auxiliary_head = false}, 1);
}

// Compares the loss of the first step with the reference. Later losses contain errors of earlier steps. VGG-16 has no
// batch norm, which would magnify errors. It has 16 layers with sums of up to 4608 terms, and Winograd's factor is 8.2.
TEST(OnednnStep, TheLossEqualsTheReferences) {
  const ModelSpec spec{.model = "vgg16", .batch_size = 4, .image_size = 32, .classes = 10, .auxiliary_head = false};
  Trainer ours(spec);
  const HeapArena arena = make_heap_arena();
  const auto reference = make_reference_step(differentiate(build_model(spec)), {}, arena.allocate);
  RecordingSink sink;
  const double expected = reference->forward_backward(ours.data.batch(), sink);
  EXPECT_NEAR(ours.run(), expected, 16 * std::sqrt(4608.0) * 0x1p-23 * 8.2 * std::abs(expected));
  // Operations in place and shared buffers must not change a gradient. All gradients have the same relative bound.
  for (std::size_t i = 0; i < ours.step->slots().size(); ++i) {
    const std::vector<float> got = ours.gradient(i);
    std::vector<float> wanted(got.size());
    reference->read_gradient(i, wanted);
    double difference = 0, norm = 0;
    for (std::size_t k = 0; k < got.size(); ++k) {
      difference += std::pow(static_cast<double>(got[k]) - wanted[k], 2);
      norm += std::pow(static_cast<double>(wanted[k]), 2);
    }
    // Forward pass and backward pass together have twice as many layers as the forward pass.
    EXPECT_LE(std::sqrt(difference), 2 * 16 * std::sqrt(4608.0) * 0x1p-23 * 8.2 * std::sqrt(norm))
        << ours.step->slots()[i].name;
  }
}

TEST(OnednnStep, ProfileNamesEveryOperationAndIsMostlyTheLibrarys) {
  Trainer trainer(kSmall, {.profile = true});
  (void)trainer.run();
  trainer.step->update({});
  const auto profile = trainer.step->profile();
  ASSERT_GT(profile.size(), 100U);
  EXPECT_EQ(std::count_if(profile.begin(), profile.end(), [](const auto& o) { return o.kind == "update"; }), 1);
  for (const OperationProfile& operation : profile) {
    EXPECT_FALSE(operation.node.empty());
    EXPECT_FALSE(operation.implementation.empty()) << operation.node;
    if (operation.kind == "conv") {
      EXPECT_TRUE(operation.library) << operation.node;
    }
    if (operation.kind == "reorder" || operation.kind == "update") {
      EXPECT_FALSE(operation.library) << operation.node;
    }
    EXPECT_GE(operation.seconds, 0) << operation.node;
    // The names of the library's slow fallback implementations contain "ref". One of them would dominate the step's
    // time.
    EXPECT_EQ(operation.implementation.find("ref"), std::string::npos) << operation.node << operation.implementation;
  }
  EXPECT_TRUE(Trainer(kSmall).step->profile().empty());
}

TEST(OnednnStep, RefusesWhatItCannotDo) {
  const HeapArena arena = make_heap_arena();
  const Graph graph = differentiate(build_model(kSmall));
  for (const StepOptions& options : {StepOptions{.compute = DataType::kF16}, StepOptions{.gradient = DataType::kF16}}) {
    expect_error(Errc::kUnsupported, "", [&] { return make_onednn_step(graph, options, arena.allocate); });
  }
  const auto invalid = [](const auto& call) { expect_error(Errc::kInvalidArgument, "", call); };
  invalid([&] { return make_onednn_step(graph, {.threads = 0}, arena.allocate); });
  invalid([&] { return make_onednn_step(build_model(kSmall), {}, arena.allocate); });
  Trainer trainer(kSmall);
  std::vector<float> wrong(3);
  invalid([&] { trainer.step->read_parameter(0, wrong); });
  invalid([&] { trainer.step->write_parameter(100000, wrong); });
  RecordingSink sink;
  Batch batch = trainer.data.batch();
  batch.labels = batch.labels.subspan(1);
  invalid([&] { return trainer.step->forward_backward(batch, sink); });
  trainer.data.labels[0] = 10;
  invalid([&] { return trainer.run(); });
}

TEST(OnednnStep, SaysWhyATypeIsNotSupported) {
  EXPECT_EQ(onednn_unsupported_reason(DataType::kF32), "");
  EXPECT_NE(onednn_unsupported_reason(DataType::kF16).find("GPU"), std::string::npos);
  EXPECT_NE(onednn_unsupported_reason(DataType::kF64), "");
}

}  // namespace
}  // namespace hvd::models::step_test
