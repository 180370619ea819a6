// Reads back the timeline of a run. It must be valid JSON and hold the events of the run.
#include "engine/runtime/trace.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/runtime/ranks.h"

namespace hvd::trace_test {
namespace {

/// Checks only the grammar of JSON (RFC 8259), not the meaning.
class JsonChecker {
 public:
  explicit JsonChecker(std::string_view text) : text_(text) {}
  bool valid() {
    const bool good = value();
    space();
    return good && at_ == text_.size();
  }

 private:
  void space() {
    while (at_ < text_.size() && (std::isspace(static_cast<unsigned char>(text_[at_])) != 0)) ++at_;
  }
  bool take(char c) {
    space();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool word(std::string_view expected) {
    if (text_.substr(at_, expected.size()) != expected) return false;
    at_ += expected.size();
    return true;
  }
  bool string() {
    if (!take('"')) return false;
    for (; at_ < text_.size() && text_[at_] != '"'; ++at_) {
      if (static_cast<unsigned char>(text_[at_]) < 0x20) return false;
      if (text_[at_] == '\\') ++at_;
    }
    return take('"');
  }
  bool digits() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && (std::isdigit(static_cast<unsigned char>(text_[at_])) != 0)) ++at_;
    return at_ > begin;
  }
  bool number() {
    if (at_ < text_.size() && text_[at_] == '-') ++at_;
    if (!digits()) return false;
    if (at_ < text_.size() && text_[at_] == '.') {
      ++at_;
      if (!digits()) return false;
    }
    if (at_ < text_.size() && (text_[at_] == 'e' || text_[at_] == 'E')) {
      ++at_;
      if (at_ < text_.size() && (text_[at_] == '-' || text_[at_] == '+')) ++at_;
      return digits();
    }
    return true;
  }
  bool members(char close, bool keyed) {
    if (take(close)) return true;
    do {
      if (keyed && !(string() && take(':'))) return false;
      if (!value()) return false;
    } while (take(','));
    return take(close);
  }
  bool value() {
    space();
    if (at_ >= text_.size()) return false;
    switch (text_[at_]) {
      case '{': ++at_; return members('}', true);
      case '[': ++at_; return members(']', false);
      case '"': return string();
      case 't': return word("true");
      case 'f': return word("false");
      case 'n': return word("null");
      default: return number();
    }
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::size_t occurrences(const std::string& text, std::string_view part) {
  std::size_t found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(JsonChecker, TellsGoodFromBad) {
  EXPECT_TRUE(JsonChecker(R"({"a":[1,-2.5e3,"x\"y",null],"b":{}})").valid());
  for (const char* bad : {"{", "[1,]", R"({"a" 1})", "[1] 2", R"(["a)", "[01x]", ""}) {
    EXPECT_FALSE(JsonChecker(bad).valid()) << bad;
  }
}

/// Runs three steps on two ranks with a timeline. Returns the texts of the two files.
std::array<std::string, 2> traced_run(Schedule schedule) {
  const std::string filename = testing::TempDir() + "timeline_" + std::string(name(schedule)) + ".json";
  EngineOptions options = test::patient_options(schedule);
  options.buckets.first_bucket_bytes = 256;
  options.timeline_filename = filename;
  test::expect_all_good(test::on_ranks(2, options, [](Engine& engine, int) {
    EXPECT_TRUE(engine.tracing());
    const auto gradients = test::make_gradients(8);
    const auto memory = engine.allocate(test::arena_elements(gradients) * sizeof(float));
    engine.set_gradients(gradients, memory.data(), DataType::kF32, ReduceOp::kSum);
    for (int step = 0; step < 3; ++step) {
      const auto begin = Clock::now();
      engine.begin_step();
      for (std::size_t g = 0; g < gradients.size(); ++g) engine.gradient_ready(g);
      engine.trace_span("backward \"quoted\"", begin, Clock::now());
      engine.finish_step();
    }
    engine.close_trace();
  }));
  return {read_file(testing::TempDir() + "timeline_" + std::string(name(schedule)) + ".0.json"),
          read_file(testing::TempDir() + "timeline_" + std::string(name(schedule)) + ".1.json")};
}

TEST(Trace, AStaticRunShowsItsBucketsItsGradientsAndTheCallersSpans) {
  const auto files = traced_run(Schedule::kStatic);
  const auto gradients = test::make_gradients(8);
  const std::size_t buckets =
      core::plan_buckets(gradients, DataType::kF32, ReduceOp::kSum, {25U << 20, 256}).buckets.size();
  for (std::size_t rank = 0; rank < 2; ++rank) {
    const std::string& text = files[rank];
    EXPECT_TRUE(JsonChecker(text).valid()) << text.substr(0, 2000);
    EXPECT_EQ(occurrences(text, "\"name\":\"rank " + std::to_string(rank) + " on "), 1U);
    EXPECT_EQ(occurrences(text, R"("name":"bucket 0: layer0.weight)"), 3U);
    EXPECT_EQ(occurrences(text, R"("cat":"reduce")"), 3 * buckets);
    EXPECT_EQ(occurrences(text, R"("algorithm":")"), 3 * buckets);
    EXPECT_EQ(occurrences(text, R"("name":"layer7.weight","ts":)"), 3U);
    EXPECT_EQ(occurrences(text, R"("name":"backward \"quoted\"")"), 3U);
    EXPECT_EQ(occurrences(text, R"("name":"finish_step")"), 3U);
    EXPECT_EQ(occurrences(text, R"("name":"negotiate")"), 0U);
    EXPECT_EQ(occurrences(text, R"("offset_ns":)"), 1U);
  }
}

TEST(Trace, ANegotiatedRunShowsItsCycles) {
  for (const std::string& text : traced_run(Schedule::kNegotiated)) {
    EXPECT_TRUE(JsonChecker(text).valid()) << text.substr(0, 2000);
    EXPECT_GE(occurrences(text, R"("name":"negotiate")"), 3U);
    EXPECT_GE(occurrences(text, R"("cat":"reduce")"), 3U);
  }
}

/// The ranks of this test share a clock, so the estimated offset must not exceed its uncertainty.
TEST(Trace, TheClockOffsetOfOneClockIsZeroWithinItsUncertainty) {
  const std::string text = traced_run(Schedule::kStatic)[1];
  const auto number = [&](const std::string& key) { return std::stoll(text.substr(text.find(key) + key.size())); };
  EXPECT_LE(std::llabs(number("\"offset_ns\":")), number("\"uncertainty_ns\":"));
}

TEST(Trace, WithoutAFileNameThereIsNoTrace) {
  test::expect_all_good(test::on_ranks(1, test::patient_options(Schedule::kStatic), [](Engine& engine, int) {
    EXPECT_FALSE(engine.tracing());
    engine.trace_span("nothing", Clock::now(), Clock::now());
    engine.close_trace();
  }));
}

TEST(Trace, WhatIsNoTraceIsLeftAsItIs) {
  const std::string name = ::testing::TempDir() + "trace_test_" + std::to_string(::getpid()) + ".json";
  const std::string path = timeline_path(name, 0);
  const auto refused = [&](const std::string& content) {
    std::ofstream(path) << content;
    try {
      check_trace_target(path);
      return false;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::kIo);
      EXPECT_NE(std::string(error.what()).find(path + " exists and is not a trace of hvd_bench"), std::string::npos);
      return true;
    }
  };
  EXPECT_TRUE(refused("my thesis"));
  EXPECT_TRUE(refused(std::string(1000, '{')));
  EXPECT_FALSE(refused(""));
  comm::Topology topology;
  topology.hosts = {"here"};
  std::ostringstream content;
  TraceWriter(name, topology).close();
  content << std::ifstream(path).rdbuf();
  EXPECT_FALSE(refused(content.str()));
  EXPECT_TRUE(refused(content.str().substr(0, 20)));
  EXPECT_THROW(TraceWriter(name, topology), Error);
  std::filesystem::remove(path);
  EXPECT_NO_THROW(check_trace_target(path));
}

TEST(Trace, AnUnwritableFileFailsTheConstructorAndTellsThePeers) {
  EngineOptions options = test::patient_options(Schedule::kStatic);
  options.timeline_filename = "/nonexistent-folder/timeline.json";
  for (const auto& outcome : test::on_ranks(2, options, [](Engine&, int) {})) {
    ASSERT_TRUE(outcome.code.has_value());
    EXPECT_EQ(*outcome.code, Errc::kIo);
  }
}

}  // namespace
}  // namespace hvd::trace_test
