// Ranks that were not started alike are found out before they train.
#include "bench/train/agreement.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "engine/base/error.h"

namespace hvd::bench::agreement_test {
namespace {

Wishes wishes(const Options& options) { return wishes_of(options, settle(options)); }

/// What `body` throws on each rank, with this code; empty where it throws nothing.
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

std::vector<std::string> meet(const std::vector<Wishes>& ranks) {
  return on_ranks(ranks.size(), Errc::kMismatch,
                  [&](comm::Communicator& communicator, std::size_t r, Deadline deadline) {
                    require_agreement(communicator, ranks[r], deadline);
                  });
}

TEST(Agreement, EqualRanksGoOn) {
  const Wishes same = wishes({});
  for (const std::string& text : meet({same, same, same})) EXPECT_EQ(text, "");
  for (const std::string& text : meet({same})) EXPECT_EQ(text, "");
}

// The plan of the reduction is the same for both, so that nothing else would tell.
TEST(Agreement, ASmallerBatchIsNamedOnAllRanks) {
  Options small;
  small.batch_size = 4;
  const auto thrown = meet({wishes({}), wishes({}), wishes(small), wishes(small)});
  for (const std::string& text : thrown) EXPECT_EQ(text, thrown[0]);
  EXPECT_NE(thrown[0].find("--batch-size is 8 on rank 0 (host "), std::string::npos) << thrown[0];
  EXPECT_NE(thrown[0].find(" and 4 on rank 2 (host "), std::string::npos) << thrown[0];
  EXPECT_NE(thrown[0].find("1 more differ"), std::string::npos) << thrown[0];
}

TEST(Agreement, AnObjectionOfOneIsHeardByAll) {
  const auto outcome = [](const std::vector<std::string>& objections) {
    return on_ranks(objections.size(), Errc::kInvalidArgument,
                    [&](comm::Communicator& communicator, std::size_t r, Deadline deadline) {
                      require_no_objection(communicator, objections[r], deadline);
                    });
  };
  EXPECT_EQ(outcome({"", "", ""}), std::vector<std::string>(3));
  EXPECT_EQ(outcome({"", "not mine", "nor mine"}), std::vector<std::string>(3, "not mine"));
}

TEST(Agreement, WhatMustBeEqualIsCompared) {
  const auto differs = [](auto change) {
    Options options;
    change(options);
    return wishes(options) != wishes({});
  };
  EXPECT_TRUE(differs([](Options& o) { o.model = "vgg16"; }));
  EXPECT_TRUE(differs([](Options& o) { o.image_size = 64; }));
  EXPECT_TRUE(differs([](Options& o) { o.classes = 10; }));
  EXPECT_TRUE(differs([](Options& o) { o.seed = 2; }));
  EXPECT_TRUE(differs([](Options& o) { o.threads = 3; }));
  EXPECT_TRUE(differs([](Options& o) { o.learning_rate = 0.02; }));
  EXPECT_TRUE(differs([](Options& o) { o.device = Device::kReference; }));
  EXPECT_TRUE(differs([](Options& o) { o.allreduce = DataType::kBF16; }));
  EXPECT_TRUE(differs([](Options& o) { o.engine.schedule = Schedule::kNone; }));
  EXPECT_TRUE(differs([](Options& o) { o.engine.buckets.bucket_bytes = 1; }));
  EXPECT_TRUE(differs([](Options& o) { o.engine.negotiation.fusion.threshold_bytes = 1; }));
  EXPECT_TRUE(differs([](Options& o) { o.engine.negotiation.cache_capacity = 1; }));
  EXPECT_TRUE(differs([](Options& o) { o.comm_options.algorithm = comm::Algorithm::kRing; }));
  EXPECT_TRUE(differs([](Options& o) { o.efficiency = true; }));
  EXPECT_TRUE(differs([](Options& o) { o.engine.timeline_filename = "t.json"; }));
  EXPECT_FALSE(differs([](Options& o) { o.num_iters = 3; })) << "rank 0 decides";
  EXPECT_FALSE(differs([](Options& o) { o.db_file = "elsewhere.db"; }));
}

}  // namespace
}  // namespace hvd::bench::agreement_test
