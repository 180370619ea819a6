#include <gtest/gtest.h>

#include <optional>
#include <stdexcept>

#include "engine/core/response_cache.h"

namespace hvd::core::cache_test {
namespace {

Request tensor(const std::string& name, std::vector<std::int64_t> shape = {4}) {
  return {name, DataType::kF32, ReduceOp::kSum, std::move(shape)};
}

/// Returns nullopt if the cache has no request of this name, true if the cached request equals `request`, else false.
std::optional<bool> hit(const ResponseCache& cache, const Request& request) {
  const auto bit = cache.bit(request.name);
  return bit ? std::optional(cache.at(*bit) == request) : std::nullopt;
}

TEST(ResponseCache, TellsHitMissAndInvalid) {
  ResponseCache cache(4);
  cache.insert(tensor("a"));
  EXPECT_EQ(hit(cache, tensor("a")), true);
  EXPECT_EQ(hit(cache, tensor("b")), std::nullopt);
  EXPECT_EQ(hit(cache, tensor("a", {5})), false);
  EXPECT_EQ(hit(cache, tensor("a", {4, 1})), false);
  EXPECT_EQ(hit(cache, {"a", DataType::kF16, ReduceOp::kSum, {4}}), false);
  EXPECT_EQ(hit(cache, {"a", DataType::kF32, ReduceOp::kMax, {4}}), false);
}

TEST(ResponseCache, BitsAreTheOrderOfInsertionAndAreReusedFromTheSmallest) {
  ResponseCache cache(8);
  for (const char* name : {"a", "b", "c", "d"}) cache.insert(tensor(name));
  EXPECT_EQ(cache.bit("a"), 0U);
  EXPECT_EQ(cache.bit("d"), 3U);
  cache.erase(2);
  cache.erase(0);
  EXPECT_EQ(cache.bit("a"), std::nullopt);
  EXPECT_FALSE(cache.holds(0));
  EXPECT_EQ(cache.size(), 2U);
  EXPECT_EQ(cache.bit_count(), 4U);  // the bit vector never shrinks
  cache.insert(tensor("e"));
  cache.insert(tensor("f"));
  cache.insert(tensor("g"));
  EXPECT_EQ(cache.bit("e"), 0U);
  EXPECT_EQ(cache.bit("f"), 2U);
  EXPECT_EQ(cache.bit("g"), 4U);
}

TEST(ResponseCache, AGuessOfTheBitNeverChangesTheAnswer) {
  ResponseCache cache(4);
  for (const char* name : {"a", "b", "c"}) cache.insert(tensor(name));
  cache.erase(1);
  const std::size_t out_of_range = 1000;
  for (const std::size_t guess :
       {std::size_t{0}, std::size_t{1}, std::size_t{2}, out_of_range, ResponseCache::kNoGuess}) {
    EXPECT_EQ(cache.bit("a", guess), 0U) << guess;
    EXPECT_EQ(cache.bit("b", guess), std::nullopt) << guess;
    EXPECT_EQ(cache.bit("c", guess), 2U) << guess;
    EXPECT_EQ(cache.bit("d", guess), std::nullopt) << guess;
  }
}

TEST(ResponseCache, EvictsTheLeastRecentlyUsed) {
  ResponseCache cache(3);
  for (const char* name : {"a", "b", "c"}) cache.insert(tensor(name));
  EXPECT_EQ(cache.next_victim(), 0U);
  cache.touch(0);  // now b is the least recently used
  EXPECT_EQ(cache.next_victim(), 1U);
  cache.insert(tensor("d"));
  EXPECT_EQ(cache.bit("b"), std::nullopt);
  EXPECT_EQ(cache.bit("d"), 1U);
  EXPECT_EQ(cache.bit("a"), 0U);
  cache.insert(tensor("e"));  // evicts c, not a
  EXPECT_EQ(cache.bit("c"), std::nullopt);
  EXPECT_EQ(cache.bit("a"), 0U);
  EXPECT_EQ(cache.size(), 3U);
  EXPECT_EQ(cache.bit_count(), 3U);
}

TEST(ResponseCache, InsertOfAKnownNameReplacesInPlaceAndCountsAsUse) {
  ResponseCache cache(2);
  cache.insert(tensor("a"));
  cache.insert(tensor("b"));
  cache.insert(tensor("a", {7}));
  EXPECT_EQ(cache.size(), 2U);
  EXPECT_EQ(cache.bit("a"), 0U);
  EXPECT_EQ(cache.at(0).shape, std::vector<std::int64_t>{7});
  EXPECT_EQ(cache.next_victim(), 1U);
}

TEST(ResponseCache, CapacityZeroIsOff) {
  ResponseCache cache(0);
  cache.insert(tensor("a"));
  EXPECT_EQ(cache.size(), 0U);
  EXPECT_EQ(cache.bit_count(), 0U);
  EXPECT_EQ(cache.next_victim(), std::nullopt);
  EXPECT_EQ(hit(cache, tensor("a")), std::nullopt);
}

TEST(ResponseCache, HistoryTellsCachesApart) {
  ResponseCache a(4), b(4);
  EXPECT_EQ(a.history(), b.history());
  for (ResponseCache* cache : {&a, &b}) {
    cache->insert(tensor("x"));
    cache->insert(tensor("y"));
    cache->touch(0);
  }
  EXPECT_EQ(a.history(), b.history());
  a.touch(0);
  b.touch(1);
  EXPECT_NE(a.history(), b.history());
}

TEST(ResponseCache, TouchingManyIsTouchingEachInOrder) {
  ResponseCache cache(130);
  for (int i = 0; i < 130; ++i) cache.insert(tensor(std::to_string(i)));
  cache.touch_all(std::vector<std::uint64_t>{~std::uint64_t{2}, ~std::uint64_t{0}, 2});  // all bits except 1 and 128
  EXPECT_EQ(cache.next_victim(), 1U);
  cache.touch(1);
  EXPECT_EQ(cache.next_victim(), 128U);
  cache.touch(128);
  EXPECT_EQ(cache.next_victim(), 0U);
  EXPECT_THROW(cache.touch_all(std::vector<std::uint64_t>{0, 0, 4}), std::logic_error);
}

TEST(ResponseCache, HistoryTellsTouchedSetsApart) {
  const auto after = [](std::vector<std::uint64_t> words) {
    ResponseCache cache(128);
    for (int i = 0; i < 128; ++i) cache.insert(tensor(std::to_string(i)));
    cache.touch_all(words);
    return cache.history();
  };
  EXPECT_EQ(after({1, 1}), after({1, 1}));
  EXPECT_NE(after({1, 0}), after({0, 1}));
  EXPECT_NE(after({std::uint64_t{1} << 63, 0}), after({std::uint64_t{1} << 62, 0}));
  EXPECT_NE(after({0, 0}), after({1, 0}));
}

TEST(ResponseCache, NamesOfErasedEntriesStayReadable) {
  ResponseCache cache(1);
  cache.insert(tensor("a name that does not fit into a string's own memory"));
  const std::string_view name = cache.name(0);
  cache.insert(tensor("b"));
  EXPECT_EQ(name, "a name that does not fit into a string's own memory");
  EXPECT_EQ(cache.name(0), "b");
  cache.forget_erased();  // under AddressSanitizer a later read of `name` would be an error
  EXPECT_EQ(cache.name(0), "b");
}

TEST(ResponseCache, UseOfAFreeBitIsAnAssertion) {
  ResponseCache cache(4);
  cache.insert(tensor("a"));
  EXPECT_THROW(cache.touch(1), std::logic_error);
  EXPECT_THROW(cache.erase(7), std::logic_error);
  EXPECT_THROW(static_cast<void>(cache.at(1)), std::logic_error);
}

}  // namespace
}  // namespace hvd::core::cache_test
