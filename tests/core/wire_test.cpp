// Messages from another rank may be truncated or wrong. Parsing them must give an Error and nothing else.
#include "engine/core/wire.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/core/bucket_plan.h"
#include "engine/core/coordinator.h"
#include "tests/base/errors.h"

namespace hvd::core::wire_test {
namespace {

using hvd::test::error_of;
using hvd::test::expect_error;
using Message = std::vector<std::byte>;

TEST(Wire, IsLittleEndian) {
  WireWriter out;
  out.u8(0x01);
  out.u32(0x05040302);
  out.u64(0x0d0c0b0a09080706);
  const Message bytes = out.take();
  ASSERT_EQ(bytes.size(), 13U);
  for (std::size_t i = 0; i < bytes.size(); ++i) EXPECT_EQ(static_cast<std::size_t>(bytes[i]), i + 1);
}

TEST(Wire, RequestsRoundTrip) {
  const std::vector<Request> requests{
      {"", DataType::kU8, ReduceOp::kMax, {}},
      {"conv1", DataType::kBF16, ReduceOp::kAverage, {64, 3, 7, 7}},
      {std::string("\0x", 2), DataType::kF64, ReduceOp::kMin, {0, std::int64_t{1} << 60}},
      {"scaled", DataType::kF16, ReduceOp::kSum, {3}, {Collective::kReduceScatter, 0, 0.1, -2.5}},
      {"group", DataType::kF32, ReduceOp::kSum, {2, 3, 4, 0, 1, 7}, {Collective::kGroupedAllReduce}},
      {"gather", DataType::kI8, ReduceOp::kSum, {5, 2}, {Collective::kAllGather}},
      {"broadcast", DataType::kI64, ReduceOp::kSum, {}, {Collective::kBroadcast, 511}},
      {"exchange", DataType::kI16, ReduceOp::kSum, {}, {Collective::kAllToAll}},
      {"meet", DataType::kU8, ReduceOp::kSum, {0}, {Collective::kBarrier}},
  };
  WireWriter out;
  for (const Request& request : requests) out.request(request);
  const Message bytes = out.take();
  WireReader in(bytes, "test");
  Request read;
  for (const Request& request : requests) {
    in.request(read);
    EXPECT_EQ(read, request);
  }
  in.finish();
}

TEST(Wire, ErrorsSayWhatAndWhere) {
  const Message bytes(3);
  WireReader in(bytes, "the letter");
  in.u8();
  EXPECT_EQ(error_of([&] { return in.u32(); }),
            "invalid_argument: the letter is corrupt at byte 1 of 3: it is truncated");
}

TEST(Wire, AHugeCountDoesNotAllocate) {
  WireWriter out;
  out.u32(0xffffffff);
  const Message bytes = out.take();
  WireReader in(bytes, "test");
  EXPECT_THROW(in.count(1), Error);
  WireReader text(bytes, "test");
  EXPECT_THROW(text.text(), Error);
}

TEST(Request, CountAndBytes) {
  EXPECT_EQ((Request{"s", DataType::kF64, ReduceOp::kSum, {}}.bytes()), 8U);
  EXPECT_EQ((Request{"m", DataType::kF16, ReduceOp::kSum, {3, 5}}.bytes()), 30U);
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ((Request{"e", DataType::kF32, ReduceOp::kSum, {kMax / 8, 0}}.count()), 0U);
  EXPECT_THROW(static_cast<void>(Request{"n", DataType::kF32, ReduceOp::kSum, {2, -1}}.count()), Error);
  EXPECT_THROW(static_cast<void>(Request{"h", DataType::kF32, ReduceOp::kSum, {kMax, 3}}.count()), Error);
  EXPECT_THROW(static_cast<void>(Request{"z", DataType::kF32, ReduceOp::kSum, {0, kMax, kMax, kMax}}.count()), Error);
}

/// A request that submit() would refuse is a corrupt message.
TEST(Wire, RequestsThatMakeNoSenseAreRefused) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const Request bad[] = {
      {"a", DataType::kF32, ReduceOp::kSum, {}, {Collective::kAllGather}},
      {"a", DataType::kF32, ReduceOp::kSum, {}, {Collective::kReduceScatter}},
      {"a", DataType::kF32, ReduceOp::kMax, {4}, {Collective::kBroadcast}},
      {"a", DataType::kF32, ReduceOp::kSum, {4}, {Collective::kBroadcast, -1}},
      {"a", DataType::kF32, ReduceOp::kSum, {4}, {Collective::kAllReduce, 0, kNan, 1}},
      {"a", DataType::kF32, ReduceOp::kSum, {4}, {Collective::kBroadcast, 0, 2, 1}},
      {"a", DataType::kI32, ReduceOp::kSum, {4}, {Collective::kAllReduce, 0, 2, 1}},
      {"a", DataType::kF32, ReduceOp::kSum, {}, {Collective::kGroupedAllReduce}},
      {"a", DataType::kF32, ReduceOp::kSum, {1, 5, 2, 3}, {Collective::kGroupedAllReduce}},
      {"a", DataType::kF32, ReduceOp::kSum, {1, -5}, {Collective::kGroupedAllReduce}},
      {"a",
       DataType::kF32,
       ReduceOp::kSum,
       {1, std::int64_t{1} << 60, 1, std::int64_t{1} << 60},
       {Collective::kGroupedAllReduce}},
  };
  for (const Request& request : bad) {
    EXPECT_THROW(request.check(), Error) << name(request.terms.kind) << " " << to_text(request.shape);
    WireWriter out;
    out.request(request);
    const Message bytes = out.take();
    WireReader in(bytes, "test");
    Request read;
    EXPECT_THROW(in.request(read), Error) << name(request.terms.kind) << " " << to_text(request.shape);
  }
}

TEST(Request, BytesOfAGatheredTensor) {
  const Request request{"g", DataType::kF32, ReduceOp::kSum, {5, 3}, {Collective::kAllGather}};
  const std::int64_t rows[] = {5, 0, 2};
  EXPECT_EQ(gathered_bytes(request, rows), 7U * 3 * 4);
  const std::int64_t negative[] = {5, -1};
  EXPECT_THROW(static_cast<void>(gathered_bytes(request, negative)), Error);
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  const std::int64_t too_many[] = {kMax, 1};
  EXPECT_THROW(static_cast<void>(gathered_bytes(request, too_many)), Error);
}

TEST(Coordinator, ARootThatIsNoRankIsCorrupt) {
  Coordinator coordinator(2);
  const Request a{"a", DataType::kF32, ReduceOp::kSum, {4}, {Collective::kBroadcast, 2}};
  const Request* const requests[] = {&a};
  EXPECT_THROW(coordinator.add(1, encode_requests(requests)), Error);
}

Message some_requests() {
  const Request a{"conv1.weight", DataType::kF32, ReduceOp::kSum, {64, 3, 7, 7}};
  const Request b{"b", DataType::kF16, ReduceOp::kAverage, {}};
  const Request c{"c", DataType::kF16, ReduceOp::kSum, {6, 2}, {Collective::kAllGather}};
  const Request d{"d", DataType::kF64, ReduceOp::kSum, {1, 3, 2, 2, 2}, {Collective::kGroupedAllReduce, 0, 0.5, 3}};
  const Request e{"e", DataType::kU8, ReduceOp::kSum, {}, {Collective::kBroadcast, 1}};
  const Request* const all[] = {&a, &b, &c, &d, &e};
  return encode_requests(all);
}

Message some_responses() {
  const Request a{"a", DataType::kF32, ReduceOp::kSum, {4}};
  const Request a2{"a", DataType::kF32, ReduceOp::kSum, {5}};
  const Request b{"b", DataType::kF32, ReduceOp::kSum, {4, 4}};
  const Request c{"c", DataType::kF32, ReduceOp::kSum, {4, 4}, {Collective::kAllGather}};
  const Request c2{"c", DataType::kF32, ReduceOp::kSum, {9, 4}, {Collective::kAllGather}};
  Coordinator coordinator(2);
  const Request* const first[] = {&a, &b, &c};
  const Request* const second[] = {&b, &c2, &a2};
  coordinator.add(0, encode_requests(first));
  coordinator.add(1, encode_requests(second));
  return coordinator.respond();
}

/// Reads damaged copies of `good`. Every truncation must throw an Error. A flipped bit may give another valid message
/// or an Error, and nothing else.
void fuzz(const Message& good, std::uint64_t seed, const std::function<void(const Message&)>& read) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  read(good);
  for (std::size_t length = 0; length < good.size(); ++length) {
    const Message cut(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(length));
    EXPECT_THROW(read(cut), Error) << "length " << length;
  }
  Message longer = good;
  longer.push_back(std::byte{0});
  EXPECT_THROW(read(longer), Error);

  std::mt19937_64 random(seed);
  int rejected = 0;
  for (int i = 0; i < 20000; ++i) {
    Message bad = good;
    for (std::uint64_t flips = 1 + random() % 4; flips > 0; --flips) {
      bad[random() % bad.size()] = static_cast<std::byte>(random());
    }
    if (random() % 4 == 0) bad.resize(random() % bad.size());
    try {
      read(bad);
    } catch (const Error& error) {
      ++rejected;
      ASSERT_EQ(error.code(), Errc::kInvalidArgument);
    } catch (const std::exception& error) {
      FAIL() << "case " << i << ": not an Error: " << error.what();
    }
  }
  EXPECT_GT(rejected, 1000);
}

TEST(Fuzz, Requests) {
  fuzz(some_requests(), 11, [](const Message& bytes) {
    Coordinator coordinator(2);
    coordinator.add(1, bytes);
    coordinator.respond();
  });
}

TEST(Fuzz, Responses) {
  fuzz(some_responses(), 12, [](const Message& bytes) { decode_responses(bytes); });
}

TEST(Fuzz, GradientLists) {
  const Message bytes = serialize(std::vector<GradientInfo>{{"fc", 0, 10}, {"conv2", 16, 20}, {"", 48, 5}});
  fuzz(bytes, 13, [](const Message& message) { deserialize_gradients(message); });
}

/// Messages of earlier versions began with 0xA1 to 0xA4.
TEST(Coordinator, MessagesOfAnEarlierVersionAreNamedAndNotParsed) {
  const auto told = [](Message message, std::uint8_t tag, const auto& read) {
    message.front() = std::byte{tag};
    return error_of([&] { read(message); });
  };
  Coordinator coordinator(2);
  const std::string request = told(some_requests(), 0xA3, [&](const Message& message) { coordinator.add(1, message); });
  EXPECT_NE(request.find("of rank 1"), std::string::npos) << request;
  EXPECT_NE(request.find("of this version of the program"), std::string::npos) << request;
  const std::string answer = told(some_responses(), 0xA4, [](const Message& message) { decode_responses(message); });
  EXPECT_NE(answer.find("of this version of the program"), std::string::npos) << answer;
}

TEST(Coordinator, ARepeatedRequestNamesTheRank) {
  Coordinator coordinator(2);
  const Request a{"a", DataType::kF32, ReduceOp::kSum, {4}};
  const Request* const once[] = {&a};
  coordinator.add(1, encode_requests(once));
  expect_error(Errc::kInvalidArgument, {"of rank 1", "repeats tensor 'a'"},
               [&] { coordinator.add(1, encode_requests(once)); });
}

TEST(RankSet, PrintsRanges) {
  RankSet ranks(512);
  for (const int rank : {0, 1, 2, 5, 64, 127, 128, 511}) EXPECT_TRUE(ranks.insert(rank));
  EXPECT_FALSE(ranks.insert(5));
  EXPECT_EQ(ranks.to_text(), "ranks 0-2, 5, 64, 127-128, 511");
  EXPECT_EQ(ranks.count(), 8);
  EXPECT_EQ(ranks.complement().count(), 504);
  RankSet one(3);
  one.insert(1);
  EXPECT_EQ(one.to_text(), "rank 1");
  EXPECT_EQ(one.complement().to_vector(), (std::vector<int>{0, 2}));
}

}  // namespace
}  // namespace hvd::core::wire_test
