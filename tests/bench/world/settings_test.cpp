// Tests that ranks which were started with different options are named before training starts.
#include "bench/world/settings.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "bench/world/training_options.h"
#include "engine/base/error.h"

namespace hvd::bench::settings_test {
namespace {

RunSettings settings(const Options& options) { return settings_of(options, settle(options)); }

/// Runs `body` on all ranks. Every error must have `code`. Returns texts[rank]: the text of the rank's error, or "".
template <class Body>
std::vector<std::string> on_ranks(std::size_t ranks, Errc code, Body&& body) {
  std::vector<std::string> thrown(ranks);
  auto communicators = comm::make_loopback(static_cast<int>(ranks));
  std::vector<std::jthread> threads;
  for (std::size_t r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      try {
        body(*communicators[r], r, Deadline::after(std::chrono::seconds(20)));
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), code) << error.what();
        thrown[r] = error.what();
      }
    });
  }
  threads.clear();
  return thrown;
}

std::vector<std::string> meet(const std::vector<RunSettings>& ranks) {
  return on_ranks(ranks.size(), Errc::kMismatch,
                  [&](comm::Communicator& communicator, std::size_t r, Deadline deadline) {
                    require_equal_settings(communicator, ranks[r], deadline);
                  });
}

TEST(Settings, EqualRanksGoOn) {
  const RunSettings same = settings({});
  for (const std::string& text : meet({same, same, same})) EXPECT_EQ(text, "");
  for (const std::string& text : meet({same})) EXPECT_EQ(text, "");
}

TEST(Settings, ADeviceOfItsOwnIsNamed) {
  auto on_gpu = settle({});  // `auto`, because testing::Test::Setup hides the name
  on_gpu.device = Device::kCuda;
  const auto thrown = meet({settings({}), settings_of({}, on_gpu)});
  EXPECT_NE(thrown[0].find("--device is cpu on rank 0 (host "), std::string::npos) << thrown[0];
  EXPECT_NE(thrown[0].find(" and cuda on rank 1 (host "), std::string::npos) << thrown[0];
}

// The reduction plan does not depend on the batch size, so only the comparison of options finds the difference.
TEST(Settings, ASmallerBatchIsNamedOnAllRanks) {
  Options small;
  small.batch_size = 4;
  const auto thrown = meet({settings({}), settings({}), settings(small), settings(small)});
  for (const std::string& text : thrown) EXPECT_EQ(text, thrown[0]);
  EXPECT_NE(thrown[0].find("--batch-size is 8 on rank 0 (host "), std::string::npos) << thrown[0];
  EXPECT_NE(thrown[0].find(" and 4 on rank 2 (host "), std::string::npos) << thrown[0];
  EXPECT_NE(thrown[0].find("1 more differ"), std::string::npos) << thrown[0];
}

TEST(Settings, AValueIsNamedBeforeThatItWasGiven) {
  Options other;
  other.engine.buckets.bucket_bytes = 1;
  other.tuning.buckets_given = true;
  const auto thrown = meet({settings({}), settings(other)});
  EXPECT_NE(thrown[0].find("--bucket-mb (bytes) is 26214400 on rank 0"), std::string::npos) << thrown[0];
}

TEST(Settings, AnObjectionOfOneIsHeardByAll) {
  const auto outcome = [](const std::vector<std::string>& objections) {
    return on_ranks(objections.size(), Errc::kInvalidArgument,
                    [&](comm::Communicator& communicator, std::size_t r, Deadline deadline) {
                      require_no_objection(communicator, objections[r], deadline);
                    });
  };
  EXPECT_EQ(outcome({"", "", ""}), std::vector<std::string>(3));
  EXPECT_EQ(outcome({"", "not mine", "nor mine"}), std::vector<std::string>(3, "not mine"));
}

TEST(Settings, WhatMustBeEqualIsCompared) {
  const auto differs = [](auto change) {
    Options options;
    change(options);
    return settings(options) != settings({});
  };
  EXPECT_TRUE(differs([](Options& o) { o.model = "vgg16"; }));
  EXPECT_TRUE(differs([](Options& o) { o.image_size = 64; }));
  EXPECT_TRUE(differs([](Options& o) { o.classes = 10; }));
  EXPECT_TRUE(differs([](Options& o) { o.seed = 2; }));
  EXPECT_TRUE(differs([](Options& o) { o.threads = 3; }));
  EXPECT_TRUE(differs([](Options& o) { o.winograd = false; }));
  EXPECT_TRUE(differs([](Options& o) { o.label_rule = models::LabelRule::kCycled; }));
  EXPECT_TRUE(differs([](Options& o) { o.sgd.learning_rate = 0.02; }));
  EXPECT_TRUE(differs([](Options& o) { o.allreduce = DataType::kBF16; }));
  EXPECT_TRUE(differs([](Options& o) { o.engine.schedule = Schedule::kNone; }));
  EXPECT_TRUE(differs([](Options& o) { o.engine.buckets.bucket_bytes = 1; }));
  EXPECT_TRUE(differs([](Options& o) { o.engine.negotiation.fusion.threshold_bytes = 1; }));
  EXPECT_TRUE(differs([](Options& o) { o.engine.negotiation.cache_capacity = 1; }));
  EXPECT_TRUE(differs([](Options& o) { o.comm_options.algorithm = comm::Algorithm::kRing; }));
  EXPECT_TRUE(differs([](Options& o) { o.efficiency = true; }));
  EXPECT_TRUE(differs([](Options& o) { o.efficiency = o.fit = true; }));
  EXPECT_TRUE(differs([](Options& o) { o.engine.timeline_filename = "t.json"; }));
  EXPECT_FALSE(differs([](Options& o) { o.num_iters = 3; })) << "rank 0 decides";
  EXPECT_FALSE(differs([](Options& o) { o.db_file = "elsewhere.db"; }));
}

}  // namespace
}  // namespace hvd::bench::settings_test
