// Short sessions on fake GPUs, with N threads of one process as ranks. The test's thread calls these functions.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/session/notes.h"
#include "bench/session/session.h"
#include "bench/world/options.h"
#include "tests/base/errors.h"
#include "tests/base/patience.h"
#include "tests/bench/fake_gpus.h"

namespace hvd::test {

inline bench::Options gpu_options(int ranks) {
  bench::Options options;
  options.model = "resnet50";
  options.device = bench::Device::kCuda;
  options.image_size = 32;
  options.batch_size = 2;
  options.ranks = ranks > 1 ? ranks : 0;
  options.comm = ranks > 1 ? bench::CommBackend::kLoopback : bench::CommBackend::kAuto;
  options.num_warmup_batches = 4;
  options.num_iters = 6;
  options.engine.buckets = {.bucket_bytes = 1024, .first_bucket_bytes = 256};
  options.engine.deadline = test::kNever;
  return options;
}

struct SessionOutcome {
  bench::SessionResult result;
  std::map<std::string, bench::RunRecord> saved;  ///< [uuid of a run] the run's record as last saved
  std::string error;                              ///< "code: text"; empty if the session ended well
};

inline SessionOutcome run_gpus(const bench::Options& options, FakeGpus& gpus, bench::SessionObserver observer = {}) {
  SessionOutcome outcome;
  observer.save = [&](const bench::RunRecord& record) { outcome.saved[record.uuid] = record; };
  int runs = 0;
  const auto begin = [&](bench::RunRecord& record) { record.uuid = std::to_string(++runs); };
  outcome.error = error_of([&] { outcome.result = bench::run_session(options, observer, begin, &gpus); });
  return outcome;
}

/// Runs a session that must end well.
inline bench::SessionResult good_run(const bench::Options& options, FakeGpus& gpus,
                                     bench::SessionObserver observer = {}) {
  SessionOutcome outcome = run_gpus(options, gpus, std::move(observer));
  EXPECT_EQ(outcome.error, "");
  for (const std::string& violation : gpus.violations()) ADD_FAILURE() << violation;
  return std::move(outcome.result);
}

inline std::string fact(const bench::RunRecord& run, const std::string& key) {
  const auto found = run.provenance.find(key);
  return found == run.provenance.end() ? "" : found->second.value;
}

/// Returns the first note or explanation that contains `part`, or "" if none does.
inline std::string note_with(const bench::SessionResult& result, std::string_view part) {
  std::vector<std::string> notes = bench::explanations(result.runs.back());
  notes.insert(notes.end(), result.notes.begin(), result.notes.end());
  for (const std::string& note : notes) {
    if (note.find(part) != std::string::npos) return note;
  }
  return "";
}

inline void expect_parts_within_steps(const bench::RunRecord& run) {
  for (const bench::RankRecord& rank : run.ranks) {
    const bench::RankSamples& s = rank.samples;
    for (const bench::StepSeries& series : bench::kStepSeries) ASSERT_EQ((s.*series.of_rank).size(), s.step.size());
    for (std::size_t i = 0; i < s.step.size(); ++i) {
      EXPECT_GT(s.compute[i], 0);
      EXPECT_GT(s.update[i], 0);
      EXPECT_GE(s.step[i] + 1e-12, s.compute[i] + s.exposed[i] + s.update[i]);
      EXPECT_GT(s.launch[i], 0);
      EXPECT_GT(s.host[i], fact(run, "gpu.option.launch_ahead") == "yes" ? 0 : s.launch[i]);
      EXPECT_GT(s.loss[i], i > 0 ? s.loss[i - 1] : 0) << "the number of the step";
    }
  }
}

}  // namespace hvd::test
