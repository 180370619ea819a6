#include "engine/core/bucket_plan.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/base/errors.h"

namespace hvd::core::bucket_plan_test {
namespace {

std::vector<GradientInfo> four() {
  // The gradients hold elements 0-9, 16-35, 48-52 and 64-163, with gaps of 6, 12 and 11 elements.
  return {{"fc", 0, 10}, {"conv2", 16, 20}, {"bias", 48, 5}, {"conv1", 64, 100}};
}

BucketPlan plan(const std::vector<GradientInfo>& gradients, std::size_t bucket, std::size_t first) {
  return plan_buckets(gradients, DataType::kF32, ReduceOp::kSum, {bucket, first});
}

std::string ranges(const BucketPlan& plan) {
  std::string text;
  for (const Bucket& b : plan.buckets) {
    text += std::to_string(b.first) + "-" + std::to_string(b.last) + "@" + std::to_string(b.offset) + "+" +
            std::to_string(b.count) + " ";
  }
  return text;
}

std::string error_of(const std::vector<GradientInfo>& gradients) {
  return hvd::test::error_of([&] { return plan_buckets(gradients, DataType::kF32, ReduceOp::kSum, {}); });
}

TEST(BucketPlan, ClosesABucketWhenItHasEnoughGapsIncluded) {
  // fc has 40 bytes and fills the first bucket. conv2 and bias (elements 16-52) have 148 bytes and fill a bucket of
  // 140.
  EXPECT_EQ(ranges(plan(four(), 140, 40)), "0-1@0+10 1-3@16+37 3-4@64+100 ");
  // If the first bucket needs 41 bytes, the 40 bytes of fc do not fill it. fc and conv2 together cover 36 elements.
  EXPECT_EQ(ranges(plan(four(), 140, 41)), "0-2@0+36 2-4@48+116 ");
}

TEST(BucketPlan, OneBucketWhenAllFitsAndOneEachWhenNothingDoes) {
  EXPECT_EQ(ranges(plan(four(), 1 << 20, 1 << 20)), "0-4@0+164 ");
  EXPECT_EQ(ranges(plan(four(), 0, 0)), "0-1@0+10 1-2@16+20 2-3@48+5 3-4@64+100 ");
}

TEST(BucketPlan, ElementSizeCounts) {
  const auto half = plan_buckets(four(), DataType::kF16, ReduceOp::kSum, {140, 40});
  EXPECT_EQ(ranges(half), "0-2@0+36 2-4@48+116 ");  // in F16, fc has 20 bytes, and the first bucket needs 40
}

TEST(BucketPlan, StartsWhereTheFirstGradientStarts) {
  EXPECT_EQ(ranges(plan({{"a", 7, 3}, {"b", 10, 1}}, 1000, 1000)), "0-2@7+4 ");
}

TEST(BucketPlan, HashCoversEverything) {
  const auto reference = plan(four(), 140, 40).hash;
  EXPECT_EQ(reference, plan(four(), 140, 40).hash);
  EXPECT_NE(reference, plan_buckets(four(), DataType::kI32, ReduceOp::kSum, {140, 40}).hash);
  EXPECT_NE(reference, plan_buckets(four(), DataType::kF32, ReduceOp::kAverage, {140, 40}).hash);
  EXPECT_NE(reference, plan(four(), 140, 41).hash);
  auto other = four();
  other[2].name = "bias2";
  EXPECT_NE(reference, plan(other, 140, 40).hash);
  other = four();
  other[3].count = 99;
  EXPECT_NE(reference, plan(other, 140, 40).hash);
  other = four();
  other[2].offset = 49;
  EXPECT_NE(reference, plan(other, 140, 40).hash);
}

TEST(BucketPlan, HashIsStableAcrossMachinesAndReleases) {
  // This FNV-1a hash over the fields, in the order that bucket_plan.h lists, was computed by an independent program.
  EXPECT_EQ(plan({{"w", 0, 3}}, 4, 4).hash, 0x61c64ad14f172c96ULL);
}

TEST(BucketPlan, RejectsWhatCannotBeAPlan) {
  EXPECT_EQ(error_of({}), "invalid_argument: no gradients to plan: the list is empty");
  EXPECT_EQ(error_of({{"a", 0, 10}, {"b", 9, 4}}),
            "invalid_argument: gradient 'b' starts at element 9, before 'a' ends at element 10: offsets must ascend "
            "without overlap");
  EXPECT_EQ(error_of({{"a", 10, 10}, {"b", 0, 4}}),
            "invalid_argument: gradient 'b' starts at element 0, before 'a' ends at element 20: offsets must ascend "
            "without overlap");
  EXPECT_EQ(error_of({{"a", 0, 0}}), "invalid_argument: gradient 'a' has no elements");
  constexpr std::size_t kMax = std::numeric_limits<std::size_t>::max();
  EXPECT_TRUE(error_of({{"a", kMax - 1, 4}}).starts_with("invalid_argument: "));
  EXPECT_TRUE(error_of({{"a", 0, kMax / 4 + 1}}).starts_with("invalid_argument: "));
  EXPECT_EQ(error_of({{"a", 0, kMax / 4}}), "");
}

TEST(BucketPlan, RandomPlansCoverEveryGradientOnceInContiguousRanges) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    std::vector<GradientInfo> gradients;
    std::size_t offset = random() % 100;
    for (std::size_t i = 0, n = 1 + random() % 50; i < n; ++i) {
      gradients.push_back({"g" + std::to_string(i), offset, 1 + random() % 1000});
      offset += gradients.back().count + random() % 16;
    }
    const BucketOptions options{random() % 9000, random() % 3000};
    const auto plan = plan_buckets(gradients, DataType::kF32, ReduceOp::kSum, options);
    std::size_t next = 0;
    for (const Bucket& bucket : plan.buckets) {
      ASSERT_EQ(bucket.first, next);
      ASSERT_LT(bucket.first, bucket.last);
      ASSERT_EQ(bucket.offset, gradients[bucket.first].offset);
      const GradientInfo& last = gradients[bucket.last - 1];
      ASSERT_EQ(bucket.offset + bucket.count, last.offset + last.count);
      const std::size_t enough = next == 0 ? options.first_bucket_bytes : options.bucket_bytes;
      if (bucket.last < gradients.size()) {
        ASSERT_GE(bucket.count * 4, enough);
      }
      if (bucket.last - bucket.first > 1) {  // without its last gradient the bucket was not full
        const GradientInfo& before = gradients[bucket.last - 2];
        ASSERT_LT((before.offset + before.count - bucket.offset) * 4, enough);
      }
      next = bucket.last;
    }
    ASSERT_EQ(next, gradients.size());
  }
}

TEST(FirstDifference, NamesTheTensorAndBothValues) {
  EXPECT_EQ(first_difference(four(), four()), "");
  auto theirs = four();
  theirs[1].name = "conv9";
  EXPECT_EQ(first_difference(four(), theirs), "gradient 1: 'conv2' here, 'conv9' there");
  theirs = four();
  theirs[2].count = 6;
  EXPECT_EQ(first_difference(four(), theirs), "gradient 2: 'bias' has count 5 here, 6 there");
  theirs = four();
  theirs[3].offset = 65;
  EXPECT_EQ(first_difference(four(), theirs), "gradient 3: 'conv1' has offset 64 here, 65 there");
  theirs = four();
  theirs.pop_back();
  EXPECT_EQ(first_difference(four(), theirs), "gradient 3: 'conv1' is only here; gradients 4 here, 3 there");
  EXPECT_EQ(first_difference(theirs, four()), "gradient 3: 'conv1' is only there; gradients 3 here, 4 there");
}

TEST(GradientList, RoundTrips) {
  EXPECT_EQ(first_difference(deserialize_gradients(serialize(four())), four()), "");
  EXPECT_TRUE(deserialize_gradients(serialize({})).empty());
  const std::vector<GradientInfo> odd{{std::string("\0\xff", 2), std::numeric_limits<std::size_t>::max(), 1}};
  EXPECT_EQ(first_difference(deserialize_gradients(serialize(odd)), odd), "");
}

TEST(GradientList, EveryTruncationAndEveryExcessIsAnError) {
  const auto bytes = serialize(four());
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    const std::vector<std::byte> cut(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length));
    EXPECT_THROW(deserialize_gradients(cut), Error) << length;
  }
  auto longer = bytes;
  longer.push_back(std::byte{0});
  EXPECT_THROW(deserialize_gradients(longer), Error);
}

}  // namespace
}  // namespace hvd::core::bucket_plan_test
