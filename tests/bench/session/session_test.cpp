// Tests whole sessions on loopback ranks. Most sessions replay a small profile and so take only milliseconds.
// session_networks_test.cpp trains real networks.
#include "bench/session/session.h"

#include <gtest/gtest.h>

#include <fstream>
#include <span>
#include <sstream>
#include <string>
#include <thread>

#include "bench/session/message.h"
#include "bench/session/notes.h"
#include "bench/store/provenance.h"
#include "engine/base/error.h"
#include "engine/base/hash.h"
#include "models/replay/replay.h"
#include "tests/bench/session/session_fixture.h"

namespace hvd::bench::session_test {
namespace {

using namespace std::chrono_literals;

void expect_equal_lengths(const RunRecord& run, std::size_t samples) {
  ASSERT_EQ(run.ranks.size(), static_cast<std::size_t>(run.world_size));
  for (const RankRecord& rank : run.ranks) {
    for (const StepSeries& series : kStepSeries) {
      EXPECT_EQ((rank.samples.*series.of_rank).size(), samples) << "rank " << rank.rank;
    }
  }
}

TEST_F(SessionTest, OneCompleteRecord) {
  Options options = replay_options(4);
  options.labels["cell"] = "ab12";
  const SessionResult result = run(options);
  ASSERT_EQ(result.runs.size(), 1U);
  const RunRecord& run = result.runs[0];
  EXPECT_EQ(run.provenance.at("label.cell").value, "ab12");
  EXPECT_FALSE(run.provenance.at("label.cell").in_fingerprint) << "a label must not keep runs from being compared";
  EXPECT_EQ(run.provenance.at("option.num_iters").value, "6");
  EXPECT_EQ(run.provenance.at("option.num_warmup_batches").value, "2");
  EXPECT_EQ(run.phase, Phase::kFull);
  EXPECT_EQ(run.status, RunStatus::kComplete);
  EXPECT_EQ(run.device, "replay");
  EXPECT_EQ(run.model, "resnet50");
  EXPECT_EQ(run.comm, "loopback");
  EXPECT_EQ(run.schedule, "static");
  EXPECT_EQ(run.world_size, 4);
  EXPECT_EQ(run.warmup_steps, 2);
  EXPECT_EQ(run.measured_steps, 6);
  EXPECT_EQ(run.stop_reason, "iterations asked for");
  EXPECT_EQ(run.parameters, 31007);
  EXPECT_EQ(run.buckets, 3) << "two gradients that fill a bucket each, and the rest";
  EXPECT_EQ(run.plan_hash.size(), 16U);
  EXPECT_FALSE(run.data_plane.empty());
  EXPECT_FALSE(run.final_loss.has_value());
  EXPECT_NE(run.checks.find("100 % of 31007 elements"), std::string::npos) << run.checks;
  EXPECT_NE(run.checks.find("equal on all ranks"), std::string::npos) << run.checks;
  expect_equal_lengths(run, 6);
  for (const RankRecord& rank : run.ranks) {
    EXPECT_EQ(rank.gradient_checksum, run.ranks[0].gradient_checksum);
    EXPECT_GT(rank.peak_bytes, 0);
    EXPECT_GT(rank.planned_bytes, 31007 * 4);
  }
  EXPECT_GE(run.step_seconds->value, 0.0022) << "the profile's backward and update";
  EXPECT_DOUBLE_EQ(run.images_per_second->value, 16 / run.step_seconds->value);
  EXPECT_EQ(saved_.at("1").status, RunStatus::kComplete);
  EXPECT_EQ(explanations(saved_.at("1")), explanations(run)) << "the store has them";
  EXPECT_FALSE(any_contains(result.notes, "memory per rank"));
  EXPECT_TRUE(any_contains(explanations(result.runs.back()), "memory per rank"));
  EXPECT_TRUE(any_contains(explanations(result.runs.back()), "exposed communication"));
}

TEST_F(SessionTest, TwoRecordingsOfOneNameHaveUnlikeFingerprints) {
  const RunRecord first = run(replay_options(2)).runs.at(0);
  models::ReplayProfile longer = profile();
  longer.update_seconds *= 2;
  const std::string text = models::to_text(longer);
  std::ofstream(folder_ / "profile") << text;
  RunRecord second = run(replay_options(2)).runs.at(0);
  EXPECT_TRUE(second.provenance.at("replay.profile").in_fingerprint);
  EXPECT_EQ(second.provenance.at("replay.profile").value,
            hex64(Hasher().bytes(std::as_bytes(std::span(text))).value()));
  EXPECT_NE(fingerprint(first), fingerprint(second));
  second.provenance["replay.profile"] = first.provenance.at("replay.profile");
  EXPECT_EQ(fingerprint(first), fingerprint(second)) << "nothing else tells them apart";
}

TEST_F(SessionTest, AShrunkReplaySaysSoInTheRecord) {
  Options options = replay_options(2);
  options.replay_shrink = 100;
  const SessionResult result = run(options);
  ASSERT_EQ(result.runs.size(), 1U);
  const RunRecord& run = result.runs[0];
  EXPECT_EQ(run.model, "resnet50-div100");
  EXPECT_EQ(run.device, "replay");
  EXPECT_EQ(run.parameters, 10 + 300 + 1);
  EXPECT_EQ(run.gradient_bytes, 4 * run.parameters);
  EXPECT_EQ(run.provenance.at("replay.gradient_divisor").value, "100");
  EXPECT_TRUE(run.provenance.at("replay.gradient_divisor").in_fingerprint);
  EXPECT_TRUE(any_contains(result.notes, "nothing is computed"));
  EXPECT_TRUE(any_contains(result.notes, "cut to 1/100"));
}

TEST_F(SessionTest, EfficiencyMeasuresThreePhasesAndTheRowsSumToOne) {
  Options options = replay_options(4);
  options.efficiency = true;
  options.num_iters = 7;
  const SessionResult result = run(options);
  ASSERT_EQ(result.runs.size(), 3U);
  EXPECT_EQ(result.runs[0].phase, Phase::kSolo);
  EXPECT_EQ(result.runs[0].world_size, 1);
  EXPECT_EQ(result.runs[0].allocation_size, 4);
  EXPECT_EQ(result.runs[0].schedule, "none");
  EXPECT_EQ(result.runs[0].comm, "solo") << "one rank alone talks to nobody";
  EXPECT_EQ(result.runs[1].comm, "loopback");
  EXPECT_EQ(result.runs[1].phase, Phase::kNone);
  EXPECT_EQ(result.runs[1].world_size, 4);
  EXPECT_EQ(result.runs[2].phase, Phase::kFull);
  for (const RunRecord& run : result.runs) {
    EXPECT_EQ(run.status, RunStatus::kComplete);
    expect_equal_lengths(run, 7);
  }
  ASSERT_EQ(result.runs[2].decomposition.size(), 8U);
  double sum = 0;
  for (const DecompositionRow& row : result.runs[2].decomposition) sum += row.fraction;
  EXPECT_NEAR(sum, 1, 1e-12);
  EXPECT_TRUE(any_contains(explanations(result.runs.back()), "against independent ranks"));
  EXPECT_TRUE(any_contains(explanations(result.runs.back()), "measured / expected"));
  EXPECT_TRUE(any_contains(explanations(result.runs.back()), "as full minus none"));
}

TEST_F(SessionTest, AnEfficiencyComesFromTwelveRoundsAndSaysWhatBecameOfFirstSteps) {
  Options options = replay_options(2);
  options.efficiency = true;
  options.num_iters.reset();
  options.target_interval = 10;                // accepts an interval of any width
  options.max_time = std::chrono::seconds(8);  // twelve rounds take 0.1 s
  std::vector<std::string> told;
  observer_.tell = [&](const std::string& line) { told.push_back(line); };
  const SessionResult result = run(options);
  ASSERT_FALSE(told.empty());
  EXPECT_EQ(told[0].rfind("  plan       ", 0), 0U) << told[0];
  EXPECT_NE(told[0].find(" rounds of 3 phases, "), std::string::npos) << told[0];
  const Provenance& facts = result.runs[2].provenance;
  EXPECT_GE(std::stoi(facts.at("measurement.rounds").value), 12);
  EXPECT_FALSE(facts.at("measurement.rounds").in_fingerprint);
  const std::string& first_steps = facts.at("measurement.first_steps").value;
  EXPECT_NE(first_steps.find(", none "), std::string::npos) << first_steps;
  EXPECT_TRUE(any_contains(explanations(result.runs.back()), "first step after a change of phase: " + first_steps));
  EXPECT_FALSE(any_contains(result.notes, "caution: the efficiency comes from "));
  EXPECT_EQ(result.runs[0].measured_steps, result.runs[2].measured_steps);
}

TEST_F(SessionTest, WhereTooFewRoundsFitNothingIsMeasured) {
  Options options = replay_options(2);
  options.efficiency = true;
  options.num_iters.reset();
  options.num_batches_per_iter = 100'000;  // a round takes ten minutes and more
  options.max_time = std::chrono::seconds(1);
  const std::string error = test::error_of(Errc::kInconclusive, [&] { (void)run(options); });
  EXPECT_NE(error.find("too few rounds would fit for an interval: resnet50 takes "), std::string::npos) << error;
  EXPECT_NE(error.find(", so 12 rounds of the three phases would take about "), std::string::npos) << error;
  EXPECT_TRUE(saved_.empty());
}

TEST_F(SessionTest, OneRankComparesStaticWithNone) {
  Options options = replay_options(1);
  options.efficiency = true;
  const SessionResult result = run(options);
  ASSERT_EQ(result.runs.size(), 3U);
  EXPECT_EQ(result.runs[2].comm, "solo");
  EXPECT_TRUE(any_contains(explanations(result.runs.back()), "step time static / none"));
}

TEST_F(SessionTest, ShardedScheduleGathersAndTellsItsMemory) {
  Options options = replay_options(3);
  options.engine.schedule = Schedule::kSharded;
  const SessionResult result = run(options);
  EXPECT_EQ(result.runs[0].schedule, "sharded");
  EXPECT_NE(result.runs[0].checks.find("100 %"), std::string::npos) << "the shares are gathered for the check";
  EXPECT_TRUE(any_contains(
      result.notes, "sharded: each rank holds 0.12 MiB of gradients, 0.12 of weights, and at most 0.00 of momentum"));
}

TEST_F(SessionTest, ANegotiatedRunTellsItsCyclesPerStep) {
  Options options = replay_options(2);
  options.efficiency = true;
  options.engine.schedule = Schedule::kNegotiated;
  const SessionResult result = run(options);
  const ProvenanceFact& cycles = result.runs[2].provenance.at("engine.cycles");
  EXPECT_FALSE(cycles.in_fingerprint);
  EXPECT_GE(std::stod(cycles.value), 1);
  EXPECT_LE(std::stod(cycles.value), 3) << "every cycle reduces at least one of three gradients";
  EXPECT_FALSE(result.runs[1].provenance.contains("engine.cycles")) << "phase none";
  options.engine.schedule = Schedule::kStatic;
  EXPECT_FALSE(run(options).runs[2].provenance.contains("engine.cycles"));
}

TEST_F(SessionTest, GradientsTravelIn16BitsBetweenNodesOnly) {
  for (const Schedule schedule : {Schedule::kStatic, Schedule::kNegotiated}) {
    for (const int ranks_per_node : {0, 2}) {
      Options options = replay_options(4);
      options.engine.schedule = schedule;
      options.allreduce = DataType::kBF16;
      options.comm_options.ranks_per_node = ranks_per_node;
      const SessionResult result = run(options);
      const RunRecord& record = result.runs[0];
      EXPECT_EQ(record.allreduce_type, "bf16");
      EXPECT_EQ(record.gradient_bytes, 4 * record.parameters) << "fp32 in memory";
      EXPECT_EQ(record.data_plane.find("bf16 on the wire") != std::string::npos, ranks_per_node > 0)
          << record.data_plane;
      EXPECT_NE(record.checks.find("100 %"), std::string::npos) << record.checks;
    }
  }
}

TEST_F(SessionTest, SamplesAreMeansOverBatchesPerIteration) {
  Options options = replay_options(2);
  options.num_batches_per_iter = 3;
  options.num_iters = 4;
  const SessionResult result = run(options);
  expect_equal_lengths(result.runs[0], 4);
  EXPECT_EQ(result.runs[0].measured_steps, 12);
}

TEST_F(SessionTest, WithoutReductionThereIsOneRecordOfPhaseNone) {
  Options options = replay_options(2);
  options.comm = CommBackend::kNone;
  const SessionResult result = run(options);
  ASSERT_EQ(result.runs.size(), 1U);
  EXPECT_EQ(result.runs[0].phase, Phase::kNone);
  EXPECT_EQ(result.runs[0].world_size, 2);
  EXPECT_EQ(result.runs[0].data_plane, "none");
  EXPECT_EQ(result.runs[0].checks, "");
}

TEST_F(SessionTest, WarmsUpUntilSteadyAndStopsWhenTheIntervalIsNarrow) {
  Options options = replay_options(2);
  options.num_warmup_batches.reset();
  options.num_iters.reset();
  options.target_interval = 0.5;
  const SessionResult result = run(options);
  EXPECT_GE(result.runs[0].warmup_steps, 9);
  EXPECT_EQ(result.runs[0].stop_reason, "interval narrow enough");
  EXPECT_TRUE(any_contains(explanations(result.runs.back()), "steady after"));
  EXPECT_NE(result.runs[0].provenance.at("measurement.warm_up").value.find("steady after"), std::string::npos);
}

TEST_F(SessionTest, TheTimeCapHolds) {
  Options options = replay_options(2);
  options.num_iters = 1'000'000;
  options.max_time = std::chrono::seconds(1);
  const SessionResult result = run(options);
  EXPECT_EQ(result.runs[0].stop_reason, "time cap");
  EXPECT_EQ(result.runs[0].status, RunStatus::kComplete);
}

TEST_F(SessionTest, AnIntervalWiderThanAskedForIsSaid) {
  Options options = replay_options(2);
  options.num_iters.reset();
  options.target_interval = 1e-9;
  options.max_time = std::chrono::seconds(1);
  options.efficiency = true;
  const SessionResult result = run(options);
  EXPECT_TRUE(any_contains(result.notes, "caution: the measurement ended (time cap) with an interval of +- "));
  options.num_iters = 4;
  EXPECT_FALSE(any_contains(run(options).notes, "with an interval of +- ")) << "so many were asked for";
  EXPECT_TRUE(any_contains(run(options).notes, "caution: the efficiency comes from "));
}

TEST_F(SessionTest, ASignalKeepsWhatWasMeasured) {
  Options options = replay_options(4);
  options.num_iters = 1'000'000;
  int asked = 0;
  observer_.stop_requested = [&] { return ++asked > 6 ? std::string("SIGTERM") : std::string(); };
  test::error_of(Errc::kInterrupted, [&] { (void)run(options); });
  ASSERT_EQ(saved_.size(), 1U);
  const RunRecord& kept = saved_.at("1");
  EXPECT_EQ(kept.status, RunStatus::kIncomplete);
  EXPECT_NE(kept.status_reason.find("SIGTERM on rank 0"), std::string::npos) << kept.status_reason;
  ASSERT_FALSE(kept.ranks.at(3).samples.step.empty()) << "every rank's samples";
  expect_equal_lengths(kept, kept.ranks[0].samples.step.size());
  EXPECT_TRUE(kept.step_seconds.has_value());
}

TEST_F(SessionTest, AFailingObserverEndsAllRanks) {
  observer_.progress = [](const Progress&) { throw Error(Errc::kIo, "disk full"); };
  test::error_of(Errc::kIo, [&] { (void)run(replay_options(4)); });
}

class StartUp : public SessionTest {
 protected:
  /// Runs a session in which rank 1 must wait for rank 0: rank 0 sleeps for `building` before it builds the network,
  /// and for `measuring` before the first sample. Returns the error's text.
  std::string error_when_late(std::chrono::milliseconds building, std::chrono::milliseconds measuring,
                              const Options& options) {
    observer_.progress = [=](const Progress& progress) {
      if (progress.stage == "building") std::this_thread::sleep_for(building);
    };
    try {
      (void)run_session(options, observer_, [=](RunRecord&) { std::this_thread::sleep_for(measuring); });
      return "";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::kPeerLost) << error.what();
      return error.what();
    }
  }
};

TEST_F(StartUp, MayTakeLongerThanAStep) {
  Options options = replay_options(2);
  options.engine.deadline = 2s;
  options.startup_deadline = 60s;
  EXPECT_EQ(error_when_late(3s, 0s, options), "");
}

TEST_F(StartUp, HasADeadlineOfItsOwn) {
  Options options = replay_options(2);
  options.engine.deadline = 60s;
  options.startup_deadline.timeout = 500ms;
  const std::string error = error_when_late(3s, 0s, options);
  EXPECT_NE(error.find("for rank 0 (host "), std::string::npos) << error;
  EXPECT_NE(error.find("raise --startup-deadline-seconds"), std::string::npos) << error;
}

TEST_F(StartUp, IsOverAfterTheFirstSteps) {
  Options options = replay_options(2);
  options.engine.deadline = {500ms, "--deadline-seconds"};
  options.startup_deadline = 60s;
  const std::string error = error_when_late(0s, 3s, options);
  EXPECT_NE(error.find("for rank 0 (host "), std::string::npos) << error;
  EXPECT_NE(error.find("raise --deadline-seconds"), std::string::npos) << error;
}

TEST_F(SessionTest, OptionsThatContradictTheReplayFileAreRefused) {
  Options options = replay_options(1);
  options.batch_size = 5;
  EXPECT_THROW((void)run(options), Error);
  options = replay_options(1);
  options.argv = {"hvd_bench", "--model=vgg16"};
  options.model = "vgg16";
  EXPECT_THROW((void)run(options), Error);
  options.model = "resnet50";
  EXPECT_NO_THROW((void)run(options));
}

TEST_F(SessionTest, RecordsAReplayOfItself) {
  Options options = replay_options(2);
  options.record_replay_file = (folder_ / "again").string();
  (void)run(options);
  std::ifstream in(options.record_replay_file);
  std::ostringstream text;
  text << in.rdbuf();
  const models::ReplayProfile again = models::parse_replay(text.str(), "again");
  ASSERT_EQ(again.gradients.size(), 3U);
  EXPECT_EQ(again.gradients[1].name, "conv2");
  EXPECT_GE(again.gradients[1].ready_seconds, 0.0015);
  EXPECT_GE(again.backward_end_seconds, 0.002);
  EXPECT_EQ(again.source_run, "1");
}

TEST_F(SessionTest, AnUnwritableReplayFileTakesNoResultWithIt) {
  Options options = replay_options(1);
  options.record_replay_file = (folder_ / "absent" / "file").string();
  const SessionResult result = run(options);
  ASSERT_EQ(result.faults.size(), 1U);
  EXPECT_NE(result.faults[0].find("absent/file: cannot write the replay file"), std::string::npos) << result.faults[0];
  ASSERT_FALSE(result.runs.empty());
  EXPECT_EQ(result.runs.back().status, RunStatus::kComplete);
}

}  // namespace
}  // namespace hvd::bench::session_test
