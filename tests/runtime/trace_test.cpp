// Reads back the timeline of a run, which must contain the events of the run. tests/cli checks that it is valid JSON.
#include "engine/runtime/trace.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/base/errors.h"
#include "tests/runtime/ranks.h"

namespace hvd::trace_test {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::size_t occurrences(const std::string& text, std::string_view part) {
  std::size_t count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

/// Runs three steps on two ranks with a timeline. Returns the texts of the two files.
std::array<std::string, 2> traced_run(Schedule schedule) {
  const std::string filename = testing::TempDir() + "timeline_" + std::to_string(::getpid()) + ".json";
  EngineOptions options = test::patient_options(schedule);
  options.buckets.first_bucket_bytes = 256;
  options.timeline_filename = filename;
  test::expect_all_good(test::on_ranks(2, options, [](Engine& engine, int) {
    EXPECT_TRUE(engine.tracing());
    test::GradientArena arena(engine, 8);
    for (int step = 0; step < 3; ++step) {
      const auto begin = Clock::now();
      engine.begin_step();
      arena.mark_all();
      engine.trace_span("backward \"quoted\"", begin, Clock::now());
      engine.finish_step();
    }
    engine.close_trace();
  }));
  const std::array<std::string, 2> files{timeline_path(filename, 0), timeline_path(filename, 1)};
  std::array<std::string, 2> texts{read_file(files[0]), read_file(files[1])};
  for (const std::string& file : files) std::filesystem::remove(file);
  return texts;
}

TEST(Trace, AStaticRunShowsItsBucketsItsGradientsAndTheCallersSpans) {
  const auto files = traced_run(Schedule::kStatic);
  const auto gradients = test::make_gradients(8);
  const std::size_t buckets =
      core::plan_buckets(gradients, DataType::kF32, ReduceOp::kSum, {25U << 20, 256}).buckets.size();
  for (std::size_t rank = 0; rank < 2; ++rank) {
    const std::string& text = files[rank];
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
    EXPECT_GE(occurrences(text, R"("name":"negotiate")"), 3U);
    EXPECT_GE(occurrences(text, R"("cat":"reduce")"), 3U);
  }
}

/// Both ranks of this test use the same clock, so the estimated offset must not exceed its uncertainty.
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
    const std::string error = test::error_of([&] { check_trace_target(path); });
    EXPECT_TRUE(error.empty() || error.find(path + " exists and is not a trace of hvd_bench") != std::string::npos)
        << error;
    return error.starts_with("io: ");
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
  EXPECT_TRUE(refused(content.str().substr(0, 10)));
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
