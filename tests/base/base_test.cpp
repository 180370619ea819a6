#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <random>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "engine/base/assert.h"
#include "engine/base/deadline.h"
#include "engine/base/error.h"
#include "engine/base/files.h"
#include "engine/base/hash.h"
#include "engine/base/json.h"
#include "engine/base/mutex.h"
#include "engine/base/philox.h"
#include "engine/base/types.h"
#include "engine/base/unique_handle.h"

namespace hvd::base_test {
namespace {

// -- errors --------------------------------------------------------------------------------------------

TEST(Error, NamesAndExitCodesAreTheDocumentedOnes) {
  const std::vector<std::pair<Errc, std::pair<std::string, int>>> table{
      {Errc::kInvalidArgument, {"invalid_argument", 2}},
      {Errc::kIo, {"io", 2}},
      {Errc::kUnsupported, {"unsupported", 2}},
      {Errc::kOutOfMemory, {"out_of_memory", 8}},
      {Errc::kTimeout, {"timeout", 5}},
      {Errc::kPeerLost, {"peer_lost", 5}},
      {Errc::kMismatch, {"mismatch", 6}},
      {Errc::kInterrupted, {"interrupted", 7}},
      {Errc::kCheckFailed, {"check_failed", 1}},
      {Errc::kInconclusive, {"inconclusive", 3}},
      {Errc::kNotComparable, {"not_comparable", 4}},
      {Errc::kBackend, {"backend", 8}},
  };
  std::set<std::string> words;
  for (const auto& [code, expected] : table) {
    EXPECT_EQ(name(code), expected.first);
    EXPECT_EQ(exit_code(code), expected.second);
    words.insert(std::string(name(code)));
  }
  EXPECT_EQ(words.size(), table.size());
}

TEST(Error, CarriesCodeAndText) {
  const Error error(Errc::kPeerLost, "rank 3 is gone");
  EXPECT_EQ(error.code(), Errc::kPeerLost);
  EXPECT_STREQ(error.what(), "rank 3 is gone");
}

TEST(Assert, ThrowsWithExpressionAndPlace) {
  EXPECT_NO_THROW(HVD_ASSERT(1 + 1 == 2));
  try {
    HVD_ASSERT(1 + 1 == 3);
    FAIL();
  } catch (const std::logic_error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("'1 + 1 == 3'"), std::string::npos) << text;
    EXPECT_NE(text.find("base_test.cpp:"), std::string::npos) << text;
  }
}

// -- types ---------------------------------------------------------------------------------------------

TEST(DataType, NamesParseBackAndSizesAreRight) {
  const std::vector<std::pair<DataType, std::size_t>> sizes{
      {DataType::kF32, 4}, {DataType::kF64, 8}, {DataType::kF16, 2}, {DataType::kBF16, 2},
      {DataType::kI32, 4}, {DataType::kI64, 8}, {DataType::kU8, 1},
  };
  for (const auto& [type, size] : sizes) {
    EXPECT_EQ(size_of(type), size);
    EXPECT_EQ(parse_data_type(name(type)), type);
  }
  EXPECT_EQ(name(DataType::kBF16), "bf16");
  EXPECT_EQ(parse_data_type("float"), std::nullopt);
  EXPECT_EQ(parse_data_type(""), std::nullopt);
}

TEST(ReduceOp, Names) {
  EXPECT_EQ(name(ReduceOp::kSum), "sum");
  EXPECT_EQ(name(ReduceOp::kAverage), "average");
  EXPECT_EQ(name(ReduceOp::kMin), "min");
  EXPECT_EQ(name(ReduceOp::kMax), "max");
}

// -- ownership -----------------------------------------------------------------------------------------

struct FakeTraits {
  using Handle = int;
  static Handle null() { return -1; }
  static void destroy(Handle handle) noexcept { destroyed().push_back(handle); }
  static std::vector<int>& destroyed() {
    static std::vector<int> list;
    return list;
  }
};
using FakeHandle = UniqueHandle<FakeTraits>;

class UniqueHandleTest : public ::testing::Test {
 protected:
  void SetUp() override { FakeTraits::destroyed().clear(); }
  using List = std::vector<int>;
};

TEST_F(UniqueHandleTest, DestroysOnceAndNeverNull) {
  {
    const FakeHandle empty;
    EXPECT_FALSE(empty);
    const FakeHandle zero(0);  // FakeTraits counts 0 as a valid handle
    EXPECT_TRUE(zero);
  }
  EXPECT_EQ(FakeTraits::destroyed(), List{0});
}

TEST_F(UniqueHandleTest, MovesLeaveTheSourceEmpty) {
  {
    FakeHandle a(1);
    FakeHandle b(std::move(a));
    EXPECT_EQ(b.get(), 1);
    FakeHandle c(2);
    c = std::move(b);
    EXPECT_EQ(FakeTraits::destroyed(), List{2});
    FakeHandle& same = c;
    c = std::move(same);  // a self-move keeps the handle
    EXPECT_EQ(c.get(), 1);
    EXPECT_EQ(FakeTraits::destroyed(), List{2});
  }
  EXPECT_EQ(FakeTraits::destroyed(), (List{2, 1}));
}

TEST_F(UniqueHandleTest, ReleaseResetAndOut) {
  FakeHandle a(5);
  EXPECT_EQ(a.release(), 5);
  EXPECT_TRUE(FakeTraits::destroyed().empty());
  *a.out() = 6;
  a.reset(6);  // resetting `a` to the handle that `a` owns destroys nothing
  EXPECT_TRUE(FakeTraits::destroyed().empty());
  a.reset(7);
  a.reset();
  EXPECT_EQ(FakeTraits::destroyed(), (List{6, 7}));
}

// -- hash ----------------------------------------------------------------------------------------------

std::uint64_t fnv(std::string_view text) {
  return Hasher().bytes(std::as_bytes(std::span(text.data(), text.size()))).value();
}

TEST(Hash, PublishedFnv1aVectors) {
  // Source of the values: http://www.isthe.com/chongo/src/fnv/test_fnv.c, fnv1a_64_vector.
  EXPECT_EQ(fnv(""), 0xcbf29ce484222325ULL);
  EXPECT_EQ(fnv("a"), 0xaf63dc4c8601ec8cULL);
  EXPECT_EQ(fnv("foobar"), 0x85944171f73967e8ULL);
}

TEST(Hash, TextIsLengthPrefixedAndNumbersAreLittleEndian) {
  EXPECT_NE(Hasher().text("ab").text("c").value(), Hasher().text("a").text("bc").value());
  EXPECT_EQ(Hasher().number(0x0807060504030201ULL).value(), fnv("\x01\x02\x03\x04\x05\x06\x07\x08"));
  EXPECT_EQ(Hasher().text("hi").value(), fnv(std::string_view("\x02\0\0\0\0\0\0\0hi", 10)));
}

TEST(Hash, Hex) {
  EXPECT_EQ(hex64(0), "0000000000000000");
  EXPECT_EQ(hex64(0x0123456789abcdefULL), "0123456789abcdef");
  EXPECT_EQ(hex64(~0ULL), "ffffffffffffffff");
}

// -- Philox --------------------------------------------------------------------------------------------

using Block = std::array<std::uint32_t, 4>;

TEST(Philox, PublishedKnownAnswers) {
  // Source of the values: Random123, file kat_vectors, philox4x32 with 10 rounds.
  EXPECT_EQ(Philox(0, 0).block(0), (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox(~0ULL, ~0ULL).block(~0ULL), (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox(0x299f31d0a4093822ULL, 0x0370734413198a2eULL).block(0x85a308d3243f6a88ULL),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, UniformIsInRangeAndUniform) {
  const Philox random(7, 3);
  constexpr int kDraws = 100000;
  double sum = 0;
  double squares = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double u = random.uniform(static_cast<std::uint64_t>(i));
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    sum += u;
    squares += u * u;
  }
  // Over n draws, the mean has the standard error sqrt(1/12/n), and the mean square sqrt(4/45/n). The test allows five
  // standard errors.
  EXPECT_NEAR(sum / kDraws, 0.5, 5 * std::sqrt(1.0 / 12 / kDraws));
  EXPECT_NEAR(squares / kDraws, 1.0 / 3, 5 * std::sqrt(4.0 / 45 / kDraws));
}

TEST(Philox, NormalHasTheMomentsOfANormal) {
  const Philox random(7, 4);
  constexpr int kDraws = 100000;
  double sum = 0;
  double squares = 0;
  double products = 0;
  double previous = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double x = random.normal(static_cast<std::uint64_t>(i));
    ASSERT_TRUE(std::isfinite(x));
    sum += x;
    squares += x * x;
    products += x * previous;
    previous = x;
  }
  // Over n draws, the mean has the standard error sqrt(1/n), the mean square sqrt(2/n), and the mean product of
  // neighbours sqrt(1/n). The test allows five standard errors.
  EXPECT_NEAR(sum / kDraws, 0.0, 5 * std::sqrt(1.0 / kDraws));
  EXPECT_NEAR(squares / kDraws, 1.0, 5 * std::sqrt(2.0 / kDraws));
  EXPECT_NEAR(products / kDraws, 0.0, 5 * std::sqrt(1.0 / kDraws));
}

TEST(Philox, ElementsDoNotDependOnTheOrderOfDrawing) {
  const Philox random(99);
  EXPECT_EQ(random.uniform(1000), Philox(99, 0).uniform(1000));
  EXPECT_NE(random.block(0), Philox(99, 1).block(0));
  EXPECT_NE(random.block(0), Philox(98).block(0));
  const auto block = random.block(5);
  for (std::uint64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(random.uniform(20 + i), static_cast<float>(block[i] >> 8) / 16777216.0F);
  }
}

// -- JSON ----------------------------------------------------------------------------------------------

TEST(Json, Strings) {
  EXPECT_EQ(json_string(""), R"("")");
  EXPECT_EQ(json_string(R"(a"b\c)"), R"("a\"b\\c")");
  EXPECT_EQ(json_string("\n\t\r"), R"("\n\t\r")");
  EXPECT_EQ(json_string(std::string_view("\0\x01\x1f\x7f", 4)), "\"\\u0000\\u0001\\u001f\x7f\"");
  EXPECT_EQ(json_string("\xc3\xa9"), "\"\xc3\xa9\"");  // valid UTF-8 is kept
}

TEST(Json, BytesThatAreNotUtf8AreReplacedSinceJsonHasNone) {
  const std::string bad = "\xef\xbf\xbd";  // U+FFFD, the replacement character
  EXPECT_EQ(json_string("a\xff"), "\"a" + bad + "\"");
  EXPECT_EQ(well_formed_utf8("a\xff\n\xc3\xa9"), "a" + bad + "\n\xc3\xa9");
  EXPECT_EQ(well_formed_utf8(""), "");
  EXPECT_EQ(json_string("\x80z"), "\"" + bad + "z\"");
  EXPECT_EQ(json_string("\xc3"), "\"" + bad + "\"");                                // an incomplete sequence
  EXPECT_EQ(json_string("\xc3z"), "\"" + bad + "z\"");                              // an incomplete sequence before 'z'
  EXPECT_EQ(json_string("\xc0\xaf"), "\"" + bad + bad + "\"");                      // '/' in two bytes instead of one
  EXPECT_EQ(json_string("\xed\xa0\x80"), "\"" + bad + bad + bad + "\"");            // a surrogate
  EXPECT_EQ(json_string("\xf4\x90\x80\x80"), "\"" + bad + bad + bad + bad + "\"");  // beyond U+10FFFF
  EXPECT_EQ(json_string("\xe2\x82\xac\xf0\x9f\x98\x80"), "\"\xe2\x82\xac\xf0\x9f\x98\x80\"");
}

TEST(Json, NumbersRoundTripInTheShortestForm) {
  EXPECT_EQ(json_number(0.1), "0.1");
  EXPECT_EQ(json_number(-3), "-3");
  EXPECT_EQ(json_number(1e300), "1e+300");
  EXPECT_EQ(json_number(std::numeric_limits<double>::quiet_NaN()), "null");
  EXPECT_EQ(json_number(-std::numeric_limits<double>::infinity()), "null");
  std::mt19937_64 random(5);
  for (int i = 0; i < 10000; ++i) {
    const auto value = std::bit_cast<double>(random());
    if (!std::isfinite(value)) continue;
    ASSERT_EQ(std::strtod(json_number(value).c_str(), nullptr), value) << "seed 5, draw " << i;
  }
  EXPECT_EQ(std::strtod(json_number(std::numeric_limits<double>::denorm_min()).c_str(), nullptr),
            std::numeric_limits<double>::denorm_min());
}

// -- time and locks ------------------------------------------------------------------------------------

TEST(Deadline, RemainingNeverNegative) {
  using namespace std::chrono_literals;
  const Deadline past(Clock::now() - 1s);
  EXPECT_TRUE(past.passed());
  EXPECT_EQ(past.remaining(), 0ns);
  const Deadline future = Deadline::after(1h);
  EXPECT_FALSE(future.passed());
  EXPECT_GT(future.remaining(), 59min);
  EXPECT_LE(future.remaining(), 1h);
  EXPECT_TRUE(Deadline::after(-1s).passed());
}

TEST(Deadline, AVeryLongTimeoutDoesNotWrapIntoThePast) {
  EXPECT_FALSE(Deadline::after(std::chrono::nanoseconds::max()).passed());
  EXPECT_FALSE(Deadline::after(std::chrono::hours(24 * 365 * 200)).passed());
  EXPECT_TRUE(Deadline::after(std::chrono::nanoseconds::min()).passed());
}

TEST(CondVar, WaitUntilReturnsAtTheDeadlineAndOnNotification) {
  using namespace std::chrono_literals;
  Mutex mutex;
  CondVar changed;
  {
    const MutexLock lock(mutex);
    EXPECT_FALSE(changed.wait_until(mutex, Clock::now() + 1ms));
  }
  bool ready = false;
  std::thread other([&] {
    const MutexLock lock(mutex);
    ready = true;
    changed.notify_all();
  });
  {
    const MutexLock lock(mutex);
    const Deadline deadline = Deadline::after(60s);
    while (!ready && changed.wait_until(mutex, deadline.when())) {
    }
    EXPECT_TRUE(ready);
  }
  other.join();
}

// -- files ---------------------------------------------------------------------------------------------

TEST(Files, NothingButAFileIsReplaced) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / ("hvd_files_" + std::to_string(::getpid()));
  fs::create_directory(folder);
  const std::string pipe = folder / "pipe", link = folder / "link", file = folder / "file";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  fs::create_symlink(pipe, link);
  for (const std::string& path : {pipe, link, folder.string()}) {
    try {
      replace_file(path, "text");
      ADD_FAILURE() << path << " was replaced";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::kIo);
      EXPECT_NE(std::string(error.what()).find("; give a file's name"), std::string::npos) << error.what();
    }
  }
  EXPECT_TRUE(fs::is_fifo(pipe));
  EXPECT_TRUE(fs::is_symlink(link));
  for (const char* const text : {"first", "again"}) replace_file(file, text);
  EXPECT_EQ(fs::file_size(file), 5U);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 3) << "nothing is left beside the file";
  fs::remove_all(folder);
}

TEST(Files, RanksOfOneProcessReplaceTheSameFile) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / ("hvd_files_" + std::to_string(::getpid()));
  fs::create_directory(folder);
  const std::string file = folder / "winners";
  constexpr int kRounds = 300;
  constexpr std::size_t kBytes = 20000;
  std::atomic<int> faults = 0;
  const auto rank = [&](char letter) {
    for (int round = 0; round < kRounds; ++round) {
      try {
        replace_file(file, std::string(kBytes, letter));
      } catch (const Error& error) {
        ++faults;
        std::puts(error.what());
      }
      const std::string seen = read_file(file).value_or("");
      if (seen.size() != kBytes || seen.find_first_not_of(seen.front()) != std::string::npos) ++faults;
    }
  };
  std::vector<std::thread> ranks;
  for (const char letter : {'a', 'b', 'c', 'd'}) ranks.emplace_back(rank, letter);
  for (std::thread& thread : ranks) thread.join();
  EXPECT_EQ(faults.load(), 0);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 1) << "nothing is left beside the file";
  fs::remove_all(folder);
}

}  // namespace
}  // namespace hvd::base_test
