// Tests sessions on CPUs that search for a schedule or use crossovers between hosts, and the folder in which a session
// keeps schedules and crossovers.
#include "bench/tune/crossovers.h"
#include "tests/bench/session/session_fixture.h"

namespace hvd::bench::session_tuning_test {
namespace {

using SessionTuning = SessionTest;

// With one rank per pretended node, the search also tries the algorithms of all-reduce. The second run must use the
// setting that the first run wrote to the folder.
TEST_F(SessionTuning, TuneScheduleOnCpusIsKeptAndTakenAgain) {
  Options options = replay_options(2);
  options.comm_options.ranks_per_node = 1;
  options.tuning.on = true;
  options.gpu.tuning_folder = (folder_ / "winners").string();
  const SessionResult first = run(options);
  const RunRecord& searched = first.runs.at(0);
  const std::string tried = searched.provenance.at("schedule.tried").value;
  EXPECT_NE(tried.find("algorithm ring"), std::string::npos) << tried;
  EXPECT_NE(tried.find("segments of 64 KiB"), std::string::npos) << tried;
  EXPECT_NE(searched.checks.find("equal on all ranks"), std::string::npos) << searched.checks;
  EXPECT_TRUE(any_contains(first.notes, "--tune-schedule found "));

  const SessionResult second = run(options);
  const RunRecord& kept = second.runs.at(0);
  EXPECT_TRUE(any_contains(second.notes, "--tune-schedule took what an earlier search kept in "));
  for (const char* const key : {"schedule.chosen", "comm.algorithm", "comm.segment_bytes", "engine.bucket_bytes"}) {
    EXPECT_EQ(kept.provenance.at(key).value, searched.provenance.at(key).value) << key;
  }
}

TEST_F(SessionTuning, ASearchKeepsTheTypeOnTheWire) {
  Options options = replay_options(2);
  options.comm_options.ranks_per_node = 1;
  options.allreduce = DataType::kF16;
  options.tuning.on = true;
  const RunRecord record = run(options).runs.at(0);
  EXPECT_NE(record.data_plane.find("fp16 on the wire"), std::string::npos) << record.data_plane;
}

TEST_F(SessionTuning, CrossoversBetweenHostsComeFromTheTuningFolder) {
  Options options = replay_options(2);
  options.comm_options.ranks_per_node = 1;
  options.gpu.tuning_folder = (folder_ / "winners").string();
  EXPECT_EQ(run(options).runs.at(0).provenance.count("comm.crossovers"), 0U);
  const comm::Thresholds never{.doubling_bytes = 0, .rabenseifner_bytes = std::size_t{1} << 40, .direct_bytes = 0};
  {
    auto world = comm::make_loopback(2, options.comm_options);
    keep_crossovers(options.gpu.tuning_folder, crossover_case(world[0]->topology(), world[0]->library()), never);
  }
  const SessionResult result = run(options);
  const RunRecord& record = result.runs.at(0);
  EXPECT_EQ(record.provenance.at("comm.crossovers").value, crossover_text(never));
  EXPECT_NE(record.data_plane.find("rabenseifner"), std::string::npos) << record.data_plane;
  EXPECT_TRUE(any_contains(result.notes, "between hosts, as kept in --tuning-folder: all_reduce: rabenseifner up to "));
  options.comm_options.ranks_per_node = 0;  // all ranks on one host
  EXPECT_EQ(run(options).runs.at(0).provenance.count("comm.crossovers"), 0U);
}

TEST_F(SessionTuning, TuneScheduleTurnsTheKnobsOfTheNegotiatedSchedule) {
  Options options = replay_options(2);
  options.engine.schedule = Schedule::kNegotiated;
  options.tuning.on = true;
  const SessionResult result = run(options);
  const std::string tried = result.runs.at(0).provenance.at("schedule.tried").value;
  EXPECT_NE(tried.find("cycle time of 0.25 ms"), std::string::npos) << tried;
  EXPECT_NE(tried.find("cycle time of 4 ms"), std::string::npos) << tried;
  EXPECT_EQ(tried.find("buckets"), std::string::npos) << tried;
  EXPECT_EQ(tried.find("algorithm ring"), std::string::npos) << "one node";
}

}  // namespace
}  // namespace hvd::bench::session_tuning_test
