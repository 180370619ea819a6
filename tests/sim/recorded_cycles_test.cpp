// The batches of real negotiated steps, read back from the engine's timeline, against those of the simulator. How many
// gradients a cycle agrees on depends on the ranks' timing, which differs from run to run. Given these numbers, the
// simulator must make the same batches.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "engine/runtime/trace.h"
#include "engine/sim/negotiated_batches.h"
#include "tests/runtime/ranks.h"

namespace hvd::sim::recorded_cycles_test {
namespace {

constexpr std::size_t kGradients = 60;
constexpr int kSteps = 6;

/// An all-reduce in the timeline: its batch ("NAME" or "NAME +2", NAME being the first gradient) and its bytes.
struct Reduction {
  std::string batch;
  std::size_t tensors = 0, bytes = 0;
  bool operator==(const Reduction&) const = default;
};
using Cycle = std::vector<Reduction>;

std::string text_after(const std::string& line, const std::string& key) {
  const std::size_t at = line.find(key);
  return at == std::string::npos ? "" : line.substr(at + key.size());
}

std::vector<Cycle> read_cycles(const std::string& path) {
  std::vector<Cycle> cycles;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::string name = text_after(line, R"("name":")");
    if (name.starts_with("negotiate\"")) cycles.emplace_back();
    if (line.find(R"("cat":"reduce")") == std::string::npos) continue;
    cycles.at(cycles.size() - 1)
        .push_back({name.substr(0, name.find('"')), std::stoul(text_after(line, R"("tensors":)")),
                    std::stoul(text_after(line, R"("bytes":)"))});
  }
  return cycles;
}

/// Runs steps on two ranks that submit in unlike portions. Returns the cycles of rank 0.
std::vector<Cycle> record(const EngineOptions& options) {
  test::expect_all_good(test::on_ranks(2, options, [](Engine& engine, int rank) {
    test::GradientArena arena(engine, kGradients);
    for (int step = 0; step < kSteps; ++step) {
      engine.begin_step();
      for (std::size_t g = 0; g < kGradients; ++g) {
        if (g % (rank == 0 ? 7 : 11) == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
        engine.gradient_ready(g);
      }
      engine.finish_step();
    }
    engine.close_trace();
  }));
  return read_cycles(timeline_path(options.timeline_filename, 0));
}

/// Returns the tensors of a cycle. All reductions of one batch have the batch's name and number of tensors.
std::size_t agreed(const Cycle& cycle) {
  std::size_t tensors = 0;
  for (std::size_t i = 0; i < cycle.size(); ++i) {
    if (i == 0 || cycle[i].batch != cycle[i - 1].batch) tensors += cycle[i].tensors;
  }
  return tensors;
}

Cycle simulated(NegotiatedBatches& batches, const std::vector<core::GradientInfo>& gradients, std::size_t first,
                std::size_t last) {
  Cycle cycle;
  for (const Batch& batch : batches.agree(first, last)) {
    std::string name = gradients[batch.gradients.front()].name;
    if (batch.gradients.size() > 1) name += " +" + std::to_string(batch.gradients.size() - 1);
    for (const std::size_t bytes : batch.reductions) cycle.push_back({name, batch.gradients.size(), bytes});
  }
  return cycle;
}

class RecordedCycles : public ::testing::TestWithParam<std::size_t> {};

TEST_P(RecordedCycles, TheSimulatorMakesTheBatchesOfARealRun) {
  EngineOptions options = test::patient_options(Schedule::kNegotiated);
  options.negotiation.fusion.threshold_bytes = GetParam();
  options.timeline_filename = testing::TempDir() + "recorded_cycles_" + std::to_string(::getpid()) + ".json";
  const std::vector<Cycle> cycles = record(options);
  for (const int rank : {0, 1}) std::filesystem::remove(timeline_path(options.timeline_filename, rank));

  const auto gradients = test::make_gradients(kGradients);
  StepProfile profile;
  for (const core::GradientInfo& gradient : gradients) {
    profile.gradients.push_back({.offset = gradient.offset, .count = gradient.count});
  }
  NegotiatedBatches batches(profile, options.negotiation);
  std::size_t first = 0, tensors = 0;
  for (const Cycle& cycle : cycles) {
    const std::size_t last = first + agreed(cycle);
    ASSERT_LE(last, kGradients) << "a cycle is of one step";
    const Cycle expected = simulated(batches, gradients, first, last);
    ASSERT_EQ(cycle.size(), expected.size());
    for (std::size_t i = 0; i < cycle.size(); ++i) {
      EXPECT_EQ(cycle[i], expected[i]) << cycle[i].batch << ", " << cycle[i].bytes << " bytes; expected "
                                       << expected[i].batch << ", " << expected[i].bytes;
    }
    tensors += agreed(cycle);
    first = last % kGradients;
  }
  EXPECT_EQ(tensors, kSteps * kGradients);
}

INSTANTIATE_TEST_SUITE_P(Thresholds, RecordedCycles, ::testing::Values(0, 300, 1024, std::size_t{128} << 20));

}  // namespace
}  // namespace hvd::sim::recorded_cycles_test
