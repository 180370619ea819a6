#include "engine/core/fusion.h"

#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "engine/core/gradient_runs.h"
#include "engine/core/pacing.h"

namespace hvd::core::fusion_test {
namespace {

Request tensor(const std::string& name, std::int64_t bytes, DataType dtype = DataType::kU8,
               ReduceOp op = ReduceOp::kSum) {
  return {name, dtype, op, {bytes / static_cast<std::int64_t>(size_of(dtype))}};
}

/// Fuses `agreed` into batches. The names in the batches point into `agreed`.
std::vector<Batch> fuse(const std::vector<Request>& agreed, const FusionOptions& options) {
  std::vector<FusionItem> items;
  std::vector<std::string_view> names;
  for (const Request& request : agreed) {
    items.push_back(item_of(request, {}));
    names.push_back(request.name);
  }
  return fuse_names(items, names, {}, options);
}

/// Returns the batches as text: in "a+b c", a and b share a batch and c has its own.
std::string plan(const std::vector<Request>& agreed, std::size_t threshold, std::size_t align = 1) {
  std::string text;
  for (const Batch& batch : fuse(agreed, {threshold, align})) {
    text += text.empty() ? "" : " ";
    for (const std::string_view name : batch.names) text.append(name == batch.names.front() ? "" : "+").append(name);
  }
  return text;
}

constexpr auto kF16 = DataType::kF16;

TEST(Fusion, NothingGivesNothing) { EXPECT_EQ(plan({}, 100), ""); }

TEST(Fusion, FillsUpToTheThresholdInclusive) {
  EXPECT_EQ(plan({tensor("a", 40), tensor("b", 60), tensor("c", 1)}, 100), "a+b c");
  EXPECT_EQ(plan({tensor("a", 40), tensor("b", 61), tensor("c", 1)}, 100), "a b+c");
}

TEST(Fusion, ThresholdZeroFusesNothingNotEvenEmptyTensors) {
  EXPECT_EQ(plan({tensor("a", 0), tensor("b", 0), tensor("c", 4)}, 0), "a b c");
}

TEST(Fusion, ATensorBeyondTheThresholdGoesAlone) {
  EXPECT_EQ(plan({tensor("a", 10), tensor("big", 101), tensor("c", 10)}, 100), "a big c");
  EXPECT_EQ(plan({tensor("big", 101), tensor("empty", 0), tensor("c", 10)}, 100), "big empty+c");
}

TEST(Fusion, LookAheadPassesOverAnotherTypeWhileFusedPlusSkippedFits) {
  // a has 30 bytes. h (20) has another type and is skipped. b (30) fits, because 60 fused + 20 skipped bytes <= 100. c
  // (30) fits, because 90 fused bytes <= 100.
  EXPECT_EQ(plan({tensor("a", 30), tensor("h", 20, kF16), tensor("b", 30), tensor("c", 30)}, 100), "a+b+c h");
  // h (80) cannot be skipped, because 30 fused + 80 skipped bytes > 100. The search ends at h.
  EXPECT_EQ(plan({tensor("a", 30), tensor("h", 80, kF16), tensor("b", 30)}, 100), "a h b");
  // If fused and skipped bytes add up to exactly the threshold, h is still skipped.
  EXPECT_EQ(plan({tensor("a", 30), tensor("h", 70, kF16), tensor("b", 30)}, 100), "a+b h");
}

TEST(Fusion, LookAheadNeverPassesATensorThatDoesNotFit) {
  // b does not fit. It cannot be skipped, because 60 fused + 50 skipped bytes > 100. The search therefore never reaches
  // c.
  EXPECT_EQ(plan({tensor("a", 60), tensor("b", 50), tensor("c", 10)}, 100), "a b+c");
}

TEST(Fusion, MixedTypesAndOperationsUnweave) {
  std::vector<Request> agreed;
  for (int i = 0; i < 3; ++i) {
    agreed.push_back(tensor("s" + std::to_string(i), 4));
    agreed.push_back(tensor("h" + std::to_string(i), 4, kF16));
    agreed.push_back(tensor("m" + std::to_string(i), 4, DataType::kU8, ReduceOp::kMax));
  }
  EXPECT_EQ(plan(agreed, 1000), "s0+s1+s2 h0+h1+h2 m0+m1+m2");
}

TEST(Fusion, AlignmentCounts) {
  // Each tensor has one byte. The tensors start at bytes 0, 64 and 128, so the last one ends at 129.
  const std::vector<Request> agreed{tensor("a", 1), tensor("b", 1), tensor("c", 1)};
  EXPECT_EQ(plan(agreed, 129, 64), "a+b+c");
  EXPECT_EQ(plan(agreed, 128, 64), "a+b c");
  EXPECT_EQ(plan(agreed, 3, 0), "a+b+c");
}

TEST(Fusion, BatchesCarryTypeOperationAndPayloadBytes) {
  const std::vector<Request> agreed{tensor("a", 6, kF16, ReduceOp::kAverage),
                                    tensor("b", 10, kF16, ReduceOp::kAverage)};
  const auto batches = fuse(agreed, FusionOptions{});
  ASSERT_EQ(batches.size(), 1U);
  EXPECT_EQ(batches[0], (Batch{{"a", "b"}, kF16, ReduceOp::kAverage, 16, ""}));
}

TEST(Fusion, HugeSizesDoNotOverflow) {
  constexpr std::size_t kHuge = std::numeric_limits<std::size_t>::max();
  const std::vector<FusionItem> items{{DataType::kU8, ReduceOp::kSum, kHuge - 1},
                                      {DataType::kU8, ReduceOp::kSum, kHuge - 1},
                                      {DataType::kU8, ReduceOp::kSum, 1}};
  for (const std::size_t align : {1, 64}) {
    const FusionGroups groups = group(items, {kHuge, align});
    EXPECT_EQ(groups.members, (std::vector<std::uint32_t>{0, 1, 2}));
    EXPECT_EQ(groups.size(), align == 1 ? 2U : 3U);
  }
}

// A naive version of the fusion rule, as Horovod formulates it: fused tensors are removed from the list.
std::vector<std::vector<std::string>> naive(std::vector<Request> left, std::size_t threshold) {
  std::vector<std::vector<std::string>> batches;
  while (!left.empty()) {
    const Request first = left.front();
    left.erase(left.begin());
    batches.push_back({first.name});
    std::size_t fused = first.bytes(), skipped = 0;
    for (std::size_t i = 0; i < left.size();) {
      const std::size_t bytes = left[i].bytes();
      if (left[i].dtype == first.dtype && left[i].op == first.op && fused + bytes <= threshold) {
        fused += bytes;
        batches.back().push_back(left[i].name);
        left.erase(left.begin() + static_cast<std::ptrdiff_t>(i));
        continue;
      }
      skipped += bytes;
      if (fused + skipped > threshold) break;
      ++i;
    }
  }
  return batches;
}

TEST(Fusion, EqualsTheNaiveRuleOnRandomLists) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const std::size_t threshold = 1 + random() % 200;
    std::vector<Request> agreed;
    for (std::size_t i = random() % 60; i > 0; --i) {
      const auto bytes = static_cast<std::int64_t>(random() % 8 == 0 ? 2 * (random() % 150) : 2 * (random() % 12));
      agreed.push_back(tensor(std::to_string(i), bytes, random() % 3 == 0 ? kF16 : DataType::kU8,
                              random() % 5 == 0 ? ReduceOp::kMax : ReduceOp::kSum));
    }
    std::vector<std::vector<std::string>> got;
    for (const Batch& batch : fuse(agreed, {threshold, 1})) {
      got.emplace_back(batch.names.begin(), batch.names.end());
    }
    ASSERT_EQ(got, naive(agreed, threshold));
  }
}

using Runs = std::vector<GradientRun>;
constexpr std::size_t kSmall = kWorthItsOwnReduction;

TEST(GradientRuns, NeighboursMakeOneRunThatIsReducedInPlaceHoweverShort) {
  const GradientRuns ranges = gradient_runs({4, 5, 6}, 12);
  EXPECT_EQ(ranges.runs, (Runs{{4, 7}}));
  EXPECT_FALSE(ranges.packed);
  EXPECT_EQ(gradient_runs({0}, 0).runs, (Runs{{0, 1}}));
}

TEST(GradientRuns, TheOrderOfTheBatchDoesNotMatter) {
  EXPECT_EQ(gradient_runs({9, 2, 1, 4, 8}, 1).runs, (Runs{{1, 3}, {4, 5}, {8, 10}}));
}

TEST(GradientRuns, SeveralRunsArePackedIfTheyAreShortOnAverage) {
  EXPECT_FALSE(gradient_runs({0, 2}, 2 * kSmall).packed);
  EXPECT_TRUE(gradient_runs({0, 2}, 2 * kSmall - 1).packed);
  EXPECT_FALSE(gradient_runs({0, 1, 3}, 2 * kSmall).packed) << "the average is over runs, not over gradients";
  EXPECT_TRUE(gradient_runs({0, 2, 4}, 2 * kSmall).packed);
}

TEST(Pacing, PausesAfterASmallCycleWhileGradientsAreToCome) {
  using std::chrono::microseconds;
  EXPECT_EQ(pause_after({.gradients = 1, .bytes = kSmallCycleBytes - 1}), microseconds{20});
  EXPECT_EQ(pause_after({.gradients = 1, .bytes = kSmallCycleBytes}), microseconds{0});
  EXPECT_EQ(pause_after({.gradients = 0, .bytes = 4}), microseconds{0}) << "only tickets";
  EXPECT_EQ(pause_after({.gradients = 1, .bytes = 4, .gradients_to_come = false}), microseconds{0});
}

}  // namespace

}  // namespace hvd::core::fusion_test
