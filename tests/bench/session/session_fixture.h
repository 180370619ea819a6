// Test case for sessions on loopback ranks. The sessions replay a small profile and so take only milliseconds.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "bench/session/session.h"
#include "models/replay/replay.h"
#include "tests/base/patience.h"
#include "tests/bench/scratch.h"

namespace hvd::bench {

class SessionTest : public testing::Test {
 protected:
  SessionTest() { std::ofstream(folder_ / "profile") << models::to_text(profile()); }

  static models::ReplayProfile profile() {
    models::ReplayProfile profile;
    profile.model = "resnet50";
    profile.units_per_step = 4;
    profile.image_size = 64;
    profile.device = "test";
    profile.compute_type = "fp32";
    profile.source_run = "00000000";
    profile.forward_seconds = 0.0005;
    profile.backward_end_seconds = 0.002;
    profile.update_seconds = 0.0002;
    profile.gradients = {{"fc", 1000, 0.001, 0.001}, {"conv2", 30000, 0.0015, 0.0015}, {"conv1", 7, 0.002, 0.002}};
    return profile;
  }

  [[nodiscard]] Options replay_options(int ranks) const {
    Options options;
    options.replay_file = (folder_ / "profile").string();
    options.comm = ranks > 1 ? CommBackend::kLoopback : CommBackend::kAuto;
    options.ranks = ranks > 1 ? ranks : 0;
    options.num_warmup_batches = 2;
    options.num_iters = 6;
    options.engine.buckets = {.bucket_bytes = 4096, .first_bucket_bytes = 1024};
    options.engine.deadline = test::kNever;
    return options;
  }

  /// Runs a session. Afterwards saved_ contains each run's record as last saved.
  SessionResult run(const Options& options) {
    observer_.save = [this](const RunRecord& record) { saved_[record.uuid] = record; };
    int runs = 0;
    return run_session(options, observer_, [&](RunRecord& record) { record.uuid = std::to_string(++runs); });
  }

  const test::Folder folder_;
  SessionObserver observer_;
  std::map<std::string, RunRecord> saved_;
};

inline bool any_contains(const std::vector<std::string>& notes, const std::string& text) {
  return std::any_of(notes.begin(), notes.end(),
                     [&](const std::string& n) { return n.find(text) != std::string::npos; });
}

}  // namespace hvd::bench
