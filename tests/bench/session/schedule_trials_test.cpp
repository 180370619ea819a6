// Tests the search for a schedule on N ranks. All ranks must choose the same setting although their times differ, and
// all ranks must end if one rank fails. The last tests run the search in whole sessions on fake GPUs.
#include "bench/session/schedule_trials.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "bench/world/settings.h"
#include "tests/bench/fake_gpus.h"
#include "tests/bench/session/gpu_sessions.h"
#include "tests/runtime/ranks.h"

namespace hvd::bench::schedule_trials_test {
namespace {

namespace fs = std::filesystem;
using test::FakeGpus;

constexpr std::size_t kMebi = std::size_t{1} << 20;

ScheduleSearch overlap_and_buckets() {
  return {ScheduleSetting{.bucket_bytes = 25 * kMebi}, {Knob::kOverlap, Knob::kBuckets}, 100 * kMebi};
}

using RankCost = std::function<double(int rank, const ScheduleSetting& setting)>;

struct Searched {
  std::vector<ScheduleChoice> ranks;
  std::vector<test::Outcome> ends;
};

Searched search_on(int size, const RankCost& cost, const std::function<std::string(int)>& stop = {}) {
  Searched searched;
  searched.ranks.resize(static_cast<std::size_t>(size));
  searched.ends = test::on_ranks(size, test::patient_options(Schedule::kStatic), [&](Engine& engine, int rank) {
    TrialBench bench;
    bench.time_steps = [&](const ScheduleSetting& setting, std::int64_t steps) {
      return std::vector<double>(static_cast<std::size_t>(steps), cost(rank, setting));
    };
    if (stop) bench.stop_requested = [&] { return stop(rank); };
    try {
      searched.ranks[static_cast<std::size_t>(rank)] = run_search(engine, overlap_and_buckets(), bench);
      engine.barrier();
    } catch (const AgreedError&) {
      engine.barrier();
      throw;
    } catch (const Error& error) {
      engine.abort(error.what());
      throw;
    }
  });
  return searched;
}

TEST(ScheduleTrials, TheSlowestRankCountsAndAllTakeTheSame) {
  // Rank 0 alone would choose 'no overlap', and rank 2 alone would choose small buckets. Each of these two settings
  // slows the other ranks, and the slowest rank decides.
  const Searched searched = search_on(3, [](int rank, const ScheduleSetting& s) {
    double cost = 0.1;
    if (!s.overlap) cost += rank == 0 ? -0.02 : 0.01;
    if (s.bucket_bytes < 25 * kMebi) cost += rank == 2 ? -0.02 : 0.01;
    if (s.bucket_bytes > 25 * kMebi) cost -= 0.01;
    return cost;
  });
  test::expect_all_good(searched.ends);
  for (const ScheduleChoice& choice : searched.ranks) {
    EXPECT_EQ(choice.setting, (ScheduleSetting{.bucket_bytes = 100 * kMebi}));
  }
  const ScheduleChoice& root = searched.ranks[0];
  EXPECT_EQ(root.provenance.at("gpu.schedule.chosen").value,
            "CUDA graph, overlap, buckets of 100 MiB, NCCL's choice of CTAs, registered memory");
  EXPECT_FALSE(root.provenance.at("gpu.schedule.chosen").in_fingerprint) << "the options chosen are";
  const std::string& tried = root.provenance.at("gpu.schedule.tried").value;
  EXPECT_EQ(tried.find("CUDA graph, overlap, buckets of 25 MiB, NCCL's choice of CTAs, registered memory: 100.000 ms "
                       "(kept); CUDA graph, no overlap, "),
            0U)
      << tried;
  EXPECT_NE(tried.find("buckets of 6.25 MiB, NCCL's choice of CTAs, registered memory: 110.000 ms; "),
            std::string::npos)
      << tried;
  EXPECT_NE(tried.find("buckets of 100 MiB, NCCL's choice of CTAs, registered memory: 90.000 ms (kept)"),
            std::string::npos)
      << tried;
  ASSERT_EQ(root.notes.size(), 1U);
  EXPECT_EQ(root.notes[0].find("--tune-schedule found buckets of 100 MiB (90.000 ms a step instead of 100.000 ms), "
                               "which is to say --bucket-mb 100, in 21 visits to 7 settings that took "),
            0U)
      << root.notes[0];
  EXPECT_TRUE(searched.ranks[1].notes.empty());
}

TEST(ScheduleTrials, WhereNothingIsFasterTheNoteSaysSo) {
  const Searched searched = search_on(2, [](int, const ScheduleSetting&) { return 0.1; });
  test::expect_all_good(searched.ends);
  EXPECT_EQ(searched.ranks[0].notes.at(0).find(
                "--tune-schedule found nothing clearly faster than CUDA graph, overlap, buckets of 25 MiB, "),
            0U)
      << searched.ranks[0].notes.at(0);
}

TEST(ScheduleTrials, ARankThatFailsEndsAllAndSaysWithWhat) {
  const Searched searched = search_on(3, [](int rank, const ScheduleSetting& s) {
    if (rank == 1 && !s.overlap) throw Error(Errc::kOutOfMemory, "rank 1 has no memory left");
    return 0.1;
  });
  for (const test::Outcome& end : searched.ends) {
    ASSERT_TRUE(end.code.has_value());
    EXPECT_NE(end.text.find("--tune-schedule, trying CUDA graph, no overlap, buckets of 25 MiB, NCCL's choice of CTAs, "
                            "registered memory: rank 1 has no memory left"),
              std::string::npos)
        << end.text;
  }
  EXPECT_EQ(searched.ends[1].code, Errc::kOutOfMemory);
}

TEST(ScheduleTrials, ASignalEndsAllAlike) {
  const Searched searched = search_on(
      2, [](int, const ScheduleSetting&) { return 0.1; }, [](int rank) { return rank == 1 ? "SIGTERM" : ""; });
  for (const test::Outcome& end : searched.ends) {
    EXPECT_EQ(end.code, Errc::kInterrupted);
    EXPECT_NE(end.text.find("stopped by SIGTERM on rank 1 ("), std::string::npos) << end.text;
  }
}

// -- whole sessions -------------------------------------------------------------------------------------------------

/// Options that leave only the CTAs to the search, so that turns_of() decides the outcome.
Options session_options(int ranks) {
  Options options = test::gpu_options(ranks);
  options.tuning.on = true;
  options.tuning.buckets_given = true;
  options.gpu.schedule.overlap = false;
  options.gpu.schedule.graph = false;
  options.gpu.nccl.register_memory = false;
  return options;
}

struct Session {
  SessionResult result;
  std::string error;
  std::set<std::string> stages;
};

Session run(const Options& options, FakeGpus& gpus) {
  Session session;
  SessionObserver observer;
  observer.progress = [&](const Progress& progress) { session.stages.insert(progress.stage); };
  try {
    session.result = run_session(
        options, observer, [](RunRecord& record) { record.uuid = "run"; }, &gpus);
  } catch (const Error& error) {
    session.error = std::string(name(error.code())) + ": " + error.what();
  }
  return session;
}

/// Makes steps fastest under a limit of eight CTAs. Under other limits steps are slower by far more than the random
/// differences between runs of the fake world.
int turns_of(int max_ctas) { return max_ctas == 8 ? 0 : 400; }

std::string fact(const RunRecord& run, const std::string& key) { return run.provenance.at(key).value; }

TEST(ScheduleTrials, ASessionTrainsWithTheFastestAndSaysSo) {
  FakeGpus gpus(2);
  gpus.nccl.turns = turns_of;
  const Session session = run(session_options(2), gpus);
  ASSERT_EQ(session.error, "");
  EXPECT_EQ(gpus.violations(), std::vector<std::string>{});
  const RunRecord& record = session.result.runs.at(0);
  EXPECT_EQ(fact(record, "gpu.option.nccl_max_ctas"), "8");
  EXPECT_EQ(fact(record, "gpu.option.graph"), "no");
  EXPECT_NE(record.data_plane.find("at most 8 CTAs"), std::string::npos) << record.data_plane;
  EXPECT_EQ(fact(record, "gpu.schedule.chosen").find("enqueued steps, no overlap, buckets of "), 0U);
  EXPECT_NE(fact(record, "gpu.schedule.tried").find("at most 16 CTAs"), std::string::npos);
  EXPECT_NE(record.checks.find("100 % of 388 elements"), std::string::npos) << record.checks;
  EXPECT_NE(record.checks.find("equal on all ranks"), std::string::npos) << record.checks;
  const auto said = std::count_if(session.result.notes.begin(), session.result.notes.end(), [](const auto& note) {
    return note.starts_with("--tune-schedule found at most 8 CTAs (");
  });
  EXPECT_EQ(said, 1);
  EXPECT_EQ(session.stages.count("trying schedules"), 1U);

  // A run with the found setting on its command line must give the same record, but without facts about a search.
  Options told = session_options(2);
  told.tuning.on = false;
  told.gpu.nccl.max_ctas = 8;
  FakeGpus others(2);
  const Session direct = run(told, others);
  ASSERT_EQ(direct.error, "");
  const RunRecord& plain = direct.result.runs.at(0);
  EXPECT_EQ(record.checks, plain.checks);
  EXPECT_EQ(record.plan_hash, plain.plan_hash);
  EXPECT_EQ(record.warmup_steps, plain.warmup_steps);
  for (const auto& [key, value] : record.provenance) {
    if (!value.in_fingerprint) continue;
    EXPECT_EQ(value.value, fact(plain, key)) << key;
  }
}

TEST(ScheduleTrials, AChoiceIsKeptInTheTuningFolderForItsCase) {
  const fs::path folder = fs::temp_directory_path() / ("hvd_schedules_" + std::to_string(::getpid()));
  Options options = session_options(2);
  options.gpu.tuning_folder = folder.string();
  const auto tried = [&] {
    FakeGpus gpus(2);
    gpus.nccl.turns = turns_of;
    const Session session = run(options, gpus);
    EXPECT_EQ(session.error, "");
    EXPECT_EQ(gpus.violations(), std::vector<std::string>{});
    const RunRecord& record = session.result.runs.at(0);
    EXPECT_EQ(fact(record, "gpu.option.nccl_max_ctas"), "8");
    return fact(record, "gpu.schedule.tried");
  };
  EXPECT_NE(tried().find("at most 16 CTAs"), std::string::npos);
  ASSERT_EQ(std::distance(fs::directory_iterator(folder), {}), 1);
  const fs::path file = fs::directory_iterator(folder)->path();
  EXPECT_EQ(tried(), "nothing: " + file.string() + " has it");
  fs::remove_all(folder);
}

TEST(ScheduleTrials, AChoiceThatCannotBeKeptIsANote) {
  ScheduleChoice choice;
  remember_schedule("/proc/no such folder", {{"model", "resnet50"}}, choice);
  ASSERT_EQ(choice.notes.size(), 1U);
  EXPECT_EQ(choice.notes[0].find("what --tune-schedule found is not kept: cannot write /proc/no such folder/resnet50-"),
            0U)
      << choice.notes[0];
}

TEST(ScheduleTrials, WhatWasGivenStays) {
  FakeGpus gpus(2);
  gpus.nccl.turns = turns_of;
  Options options = session_options(2);
  options.gpu.nccl.max_ctas = 16;
  const Session session = run(options, gpus);
  ASSERT_EQ(session.error, "");
  const RunRecord& record = session.result.runs.at(0);
  EXPECT_EQ(fact(record, "gpu.option.nccl_max_ctas"), "16");
  EXPECT_EQ(fact(record, "gpu.schedule.tried"), "nothing: every knob was given or cannot matter");
}

TEST(ScheduleTrials, EveryKnobIsTurnedWhereNoneIsGiven) {
  FakeGpus gpus(2);
  Options options = session_options(2);
  options.gpu = {};
  options.tuning = {.on = true};
  const Session session = run(options, gpus);
  ASSERT_EQ(session.error, "");
  EXPECT_EQ(gpus.violations(), std::vector<std::string>{});
  const RunRecord& record = session.result.runs.at(0);
  const std::string tried = fact(record, "gpu.schedule.tried");
  for (const char* part : {"enqueued steps, ", ", no overlap, ", "at most 4 CTAs", ", memory not registered"}) {
    EXPECT_NE(tried.find(part), std::string::npos) << part << ": " << tried;
  }
  // The first turn of all knobs tries 13 settings. A knob is tried again if a later knob made steps faster. If several
  // knobs made steps faster, the search also compares the start with the setting that combines all gains. The steps are
  // really timed, so the number of tried settings varies.
  const auto settings = std::count(tried.begin(), tried.end(), ';') + 1;
  EXPECT_GE(settings, 13) << tried;
  EXPECT_LE(settings, static_cast<std::ptrdiff_t>(ScheduleSearch::kMaxTurns) * 13 + 2) << tried;
  // The session must use and store the chosen setting, which depends on the random order of events in the fake world.
  const std::string chosen = fact(record, "gpu.schedule.chosen");
  EXPECT_EQ(chosen.starts_with("CUDA graph"), fact(record, "gpu.option.graph") == "yes") << chosen;
  EXPECT_EQ(chosen.find("no overlap") == std::string::npos, fact(record, "gpu.option.overlap") == "yes") << chosen;
  EXPECT_EQ(chosen.find("memory not registered") == std::string::npos,
            fact(record, "gpu.option.nccl_registration") == "yes")
      << chosen;
}

TEST(ScheduleTrials, OneRankTriesGraphOrNoneAlone) {
  FakeGpus gpus(1);
  Options options = session_options(1);
  options.gpu.schedule = {};
  const Session session = run(options, gpus);
  ASSERT_EQ(session.error, "");
  const std::string tried = fact(session.result.runs.at(0), "gpu.schedule.tried");
  EXPECT_EQ(std::count(tried.begin(), tried.end(), ';'), 1) << tried;
}

TEST(ScheduleTrials, AGpuThatFailsInTheSearchEndsTheSession) {
  FakeGpus gpus(2);
  gpus.faults.breaks_at = 30;
  const Session session = run(session_options(2), gpus);
  EXPECT_NE(session.error.find("--tune-schedule, trying enqueued steps, no overlap, "), std::string::npos)
      << session.error;
  EXPECT_NE(session.error.find("an illegal memory access"), std::string::npos) << session.error;
}

std::string refusal(const Options& options, FakeGpus& gpus) {
  try {
    settle(options, &gpus);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(ScheduleTrials, RunsItCannotServeAreRefusedInOneLine) {
  FakeGpus gpus(1);
  EXPECT_EQ(refusal(session_options(1), gpus), "no error");
  Options options = session_options(1);
  options.engine.schedule = Schedule::kNone;
  EXPECT_EQ(refusal(options, gpus),
            "--tune-schedule tries how gradients are reduced, and this run reduces none; leave it out");
  options = session_options(1);
  options.engine.schedule = Schedule::kNegotiated;
  EXPECT_EQ(refusal(options, gpus),
            "--tune-schedule on GPUs tries settings of the static schedule, and this run's is negotiated; leave one of "
            "them out");
  options = session_options(1);
  options.profile = true;
  EXPECT_EQ(refusal(options, gpus),
            "--profile waits for every operation, so no schedule can be tried beside it; leave out --profile or "
            "--tune-schedule");
}

}  // namespace
}  // namespace hvd::bench::schedule_trials_test
