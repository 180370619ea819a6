// Tests whole sessions of hvd_bench coll on loopback ranks, and on data planes with faults.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "bench/cli/coll/report.h"
#include "bench/coll/session.h"
#include "bench/tune/crossovers.h"
#include "bench/world/ranks.h"
#include "engine/base/deadline.h"
#include "engine/base/error.h"
#include "tests/base/patience.h"
#include "tests/bench/coll/coll_options.h"
#include "tests/bench/scratch.h"

namespace hvd::bench::coll_session_test {
namespace {

using namespace coll;
using namespace std::chrono_literals;
using test::on_threads;
using test::quick_coll;

TEST(CollSession, EveryCollectiveIsMeasuredAndRight) {
  for (const int ranks : {1, 2, 3}) {
    const CollResult result = run_coll(on_threads(ranks, quick_coll()), {});
    EXPECT_EQ(result.world.ranks, ranks);
    // At each of two sizes, three operations have two cells (in place and out of place) and two operations have one
    // cell. The barrier has one cell.
    EXPECT_EQ(result.cells.size(), 2U * (3 * 2 + 2) + 1);
    for (const CellResult& cell : result.cells) {
      const Problem& problem = cell.cell.problem;
      const std::string what = std::string(name(problem.collective)) + (problem.in_place ? ", in place, " : ", ") +
                               std::to_string(cell.bytes) + " bytes on " + std::to_string(ranks);
      EXPECT_GT(cell.samples, 0U) << what;
      EXPECT_EQ(cell.wrong.has_value(), problem.collective != MeasuredCollective::kBarrier) << what;
      EXPECT_EQ(cell.wrong.value_or(0), 0U) << what;
      EXPECT_FALSE(cell.stop_reason.empty()) << what;
    }
    EXPECT_EQ(result.exit_code(), 0);
    EXPECT_TRUE(result.interrupted.empty());
    const std::string all = ranks == 1 ? ": rank 0" : ": ranks 0-" + std::to_string(ranks - 1);
    const auto placed = result.world.facts.find("numa.of_rank");
    EXPECT_TRUE(placed == result.world.facts.end() || placed->second.value.ends_with(all)) << placed->second.value;
  }
}

TEST(CollSession, NothingToMoveIsLegal) {
  CollOptions options = quick_coll();
  options.sizes = {0};
  for (const bool ragged : {false, true}) {
    options.ragged = ragged;
    const CollResult result = run_coll(on_threads(3, options), {});
    EXPECT_EQ(result.exit_code(), 0);
    for (const CellResult& cell : result.cells) {
      EXPECT_EQ(cell.bytes, 0U);
      EXPECT_GT(cell.samples, 0U);
      EXPECT_EQ(cell.bus_rate, 0);
    }
  }
}

CollOptions crossovers(int ranks_per_node) {
  CollOptions options = quick_coll();
  options.collectives = {MeasuredCollective::kAllReduce, MeasuredCollective::kReduceScatter,
                         MeasuredCollective::kAllGather};
  options.place = Place::kInPlace;
  options.bound = false;
  options.variants[0].comm.ranks_per_node = ranks_per_node;
  options.variants = crossover_variants(options.variants[0]);
  options.find_crossovers = true;
  return options;
}

TEST(CollSession, CrossoversAreFoundKeptAndTaken) {
  const test::Folder folder;
  CollOptions options = crossovers(1);
  options.tuning_folder = (folder / "kept").string();
  const CollResult search = run_coll(on_threads(3, options), {});
  EXPECT_EQ(search.exit_code(), 0);
  ASSERT_TRUE(search.crossovers);
  EXPECT_NE(table(options, search).find("# Crossovers           : all_reduce: "), std::string::npos);
  for (const CellResult& cell : search.cells) {
    const bool reduction = cell.cell.problem.collective == MeasuredCollective::kAllReduce;
    if (!reduction) continue;
    const std::string& side = options.variants[static_cast<std::size_t>(cell.cell.variant)].name;
    EXPECT_TRUE(cell.plane.starts_with(side.substr(side.find('=') + 1))) << side << " ran " << cell.plane;
  }

  CollOptions later = quick_coll();
  later.variants[0].comm.ranks_per_node = 1;
  EXPECT_EQ(run_coll(on_threads(3, later), {}).crossovers, std::nullopt);  // without a folder, no crossovers
  later.tuning_folder = (folder / "kept").string();
  EXPECT_EQ(run_coll(on_threads(3, later), {}).crossovers, search.crossovers);
  EXPECT_EQ(run_coll(on_threads(2, later), {}).crossovers, std::nullopt);  // the folder has none for 2 ranks

  // The next session must use the crossovers `never`, which the test writes to the folder.
  const comm::Thresholds never{.doubling_bytes = 0, .rabenseifner_bytes = std::size_t{1} << 40, .direct_bytes = 0};
  {
    auto world = comm::make_loopback(3, {}, 1);
    keep_crossovers((folder / "kept").string(), crossover_case(world[0]->topology(), world[0]->library()), never);
  }
  later.collectives = {MeasuredCollective::kAllReduce};
  for (const CellResult& cell : run_coll(on_threads(3, later), {}).cells) {
    EXPECT_EQ(cell.plane, "rabenseifner over threads");
  }
  later.variants[0].comm.algorithm = comm::Algorithm::kRing;
  const CollResult forced = run_coll(on_threads(3, later), {});
  EXPECT_EQ(forced.crossovers, std::nullopt) << "no side has used them";
  EXPECT_EQ(forced.cells.front().plane, "ring over threads");
}

TEST(CollSession, OnOneHostThereAreNoCrossovers) {
  EXPECT_EQ(test::error_of(Errc::kInvalidArgument, [] { run_coll(on_threads(2, crossovers(0)), {}); }),
            "--find-crossovers compares algorithms between hosts, and all ranks are on one; start ranks on several");
}

TEST(CollSession, RaggedSharesAreMeasuredAndRight) {
  for (const int ranks : {1, 2, 3}) {
    CollOptions options = quick_coll();
    options.collectives = {MeasuredCollective::kReduceScatter, MeasuredCollective::kAllGather,
                           MeasuredCollective::kAllToAll};
    options.ragged = true;
    options.checks = 2;
    const CollResult result = run_coll(on_threads(ranks, options), {});
    EXPECT_EQ(result.cells.size(), 2U * (2 * 2 + 1));
    for (const CellResult& cell : result.cells) {
      const Problem& problem = cell.cell.problem;
      EXPECT_TRUE(problem.ragged);
      EXPECT_EQ(cell.wrong, std::optional<std::uint64_t>(0))
          << name(problem.collective) << (problem.in_place ? ", in place, " : ", ") << cell.bytes << " on " << ranks;
    }
  }
}

TEST(CollSession, EveryTypeAndReductionIsRight) {
  CollOptions options = quick_coll();
  options.collectives = {MeasuredCollective::kAllReduce, MeasuredCollective::kReduceScatter};
  options.sizes = {4096};
  options.bound = false;
  options.types.clear();
  options.ops.clear();
  for (std::uint8_t type = 0; type < kDataTypes; ++type) options.types.push_back(static_cast<DataType>(type));
  for (std::uint8_t op = 0; op < kReduceOps; ++op) options.ops.push_back(static_cast<ReduceOp>(op));
  const CollResult result = run_coll(on_threads(3, options), {});
  EXPECT_EQ(result.cells.size(), std::size_t{2} * 2 * kDataTypes * kReduceOps);
  for (const CellResult& cell : result.cells) {
    EXPECT_EQ(cell.wrong, std::optional<std::uint64_t>(0))
        << name(cell.cell.problem.type) << " " << name(cell.cell.problem.op);
  }
}

TEST(CollSession, SeveralPacesAndPlainMemory) {
  for (const Pace pace : {Pace::kWaitEach, Pace::kBarrierInside, Pace::kBarrierOutside}) {
    CollOptions options = quick_coll();
    options.pace = pace;
    options.variants[0].registered = false;
    const CollResult result = run_coll(on_threads(2, options), {});
    EXPECT_EQ(result.exit_code(), 0);
    for (const CellResult& cell : result.cells) {
      if (pace == Pace::kBarrierOutside) {
        EXPECT_EQ(cell.batch, 1U);
      }
    }
  }
}

TEST(CollSession, VariantsAreComparedRoundByRound) {
  CollOptions options = quick_coll();
  options.collectives = {MeasuredCollective::kAllReduce};
  options.variants.clear();
  for (const comm::Algorithm algorithm : {comm::Algorithm::kRing, comm::Algorithm::kSharedMemory}) {
    Variant variant;
    variant.name = std::string(comm::name(algorithm));
    variant.comm.algorithm = algorithm;
    options.variants.push_back(variant);
  }
  const CollResult result = run_coll(on_threads(2, options), {});
  ASSERT_EQ(result.variants, (std::vector<std::string>{"ring", "shm"}));
  std::set<std::string> planes;
  for (const CellResult& cell : result.cells) {
    EXPECT_EQ(cell.ratio.has_value(), cell.cell.variant == 1);
    planes.insert(cell.plane);
    EXPECT_EQ(cell.wrong, std::optional<std::uint64_t>(0));
  }
  EXPECT_EQ(planes.size(), 2U) << "each variant has a plane of its own";
}

TEST(CollSession, ASignalKeepsWhatWasMeasured) {
  CollOptions options = quick_coll();
  options.collectives = {MeasuredCollective::kAllReduce};
  options.max_seconds = 1000;
  options.target_interval = 1e-9;
  std::atomic<int> looks = 0;
  bool handed_over = false;
  CollObserver observer;
  observer.stop_requested = [&] { return ++looks > 60 ? std::string("SIGTERM") : std::string(); };
  observer.finished = [&](const CollResult& result) { handed_over = result.interrupted == "SIGTERM"; };
  const CollResult result = run_coll(on_threads(2, options), observer);
  EXPECT_EQ(result.interrupted, "SIGTERM");
  EXPECT_EQ(result.exit_code(), 7);
  EXPECT_TRUE(handed_over);
  std::size_t samples = 0;
  for (const CellResult& cell : result.cells) samples += cell.samples;
  EXPECT_GT(samples, 0U);
}

TEST(CollSession, ASnapshotHasWhatWasMeasuredSoFar) {
  CollOptions options = quick_coll();
  options.collectives = {MeasuredCollective::kAllReduce};
  options.sizes = {4096};
  options.max_seconds = 1000;
  options.target_interval = 1e-9;
  options.least_samples = 100'000;
  std::mutex mutex;
  Snapshot snapshot;
  std::optional<CollResult> seen;
  std::atomic<bool> done = false;
  CollObserver observer;
  observer.snapshot = [&](Snapshot given) {
    const std::lock_guard lock(mutex);
    snapshot = std::move(given);
  };
  observer.stop_requested = [&] { return done ? std::string("SIGTERM") : std::string(); };
  const auto measured = [&] {
    const auto has_samples = [](const CellResult& cell) { return cell.samples > 0; };
    return seen && std::any_of(seen->cells.begin(), seen->cells.end(), has_samples);
  };
  const Deadline deadline = Deadline::after(test::kAtOnce);
  std::thread watch([&] {  // the first samples may be of bare kernels, which CollResult::cells leaves out
    while (!measured() && !deadline.passed()) {
      const std::lock_guard lock(mutex);
      if (snapshot) seen = snapshot("SIGTERM, forced");
    }
    done = true;
  });
  run_coll(on_threads(2, options), observer);
  watch.join();
  ASSERT_TRUE(seen);
  EXPECT_EQ(seen->interrupted, "SIGTERM, forced");
  EXPECT_EQ(seen->cells.size(), 2U);
  EXPECT_TRUE(measured());
  EXPECT_FALSE(snapshot) << "withdrawn when the session is over";
}

TEST(CollSession, AFileThatCannotBeWrittenIsToldWhenTheRanksHaveParted) {
  CollOptions options = quick_coll();
  options.collectives = {MeasuredCollective::kBarrier};
  CollObserver observer;
  observer.finished = [](const CollResult&) { throw Error(Errc::kIo, "the disk is full"); };
  test::error_of(Errc::kIo, [&] { run_coll(on_threads(2, options), observer); });
}

TEST(CollSession, MemoryThatIsNotThereIsRefusedBeforeItIsTaken) {
  CollOptions options = quick_coll();
  options.collectives = {MeasuredCollective::kAllReduce};
  options.sizes = {std::size_t{1} << 46};
  const std::string error = test::error_of(Errc::kInvalidArgument, [&] { run_coll(on_threads(2, options), {}); });
  EXPECT_NE(error.find("would fit"), std::string::npos) << error;
}

/// A data plane that calls the real plane for every operation. On the last rank the plane then changes one element of
/// the result.
class SpoiledPlane : public comm::DataPlane {
 public:
  SpoiledPlane(comm::DataPlane& real, const comm::Topology& topology) : real_(real), topology_(topology) {}
  std::unique_ptr<comm::RegisteredMemory> allocate(std::size_t bytes, Deadline deadline) override {
    return real_.allocate(bytes, deadline);
  }
  void all_reduce(void* data, std::size_t count, DataType type, ReduceOp op, Deadline deadline) override {
    real_.all_reduce(data, count, type, op, deadline);
    spoil(data, (count - 1) * size_of(type));
  }
  void reduce_scatter(void* out, const void* in, comm::Counts counts, DataType type, ReduceOp op,
                      Deadline deadline) override {
    real_.reduce_scatter(out, in, counts, type, op, deadline);
    spoil(out, 0);
  }
  void all_gather(void* out, const void* in, comm::Counts counts, DataType type, Deadline deadline) override {
    real_.all_gather(out, in, counts, type, deadline);
    spoil(out, counts[0] * size_of(type));
  }
  void all_to_all(void* out, comm::Counts receive, const void* in, comm::Counts send, DataType type,
                  Deadline deadline) override {
    real_.all_to_all(out, receive, in, send, type, deadline);
    spoil(out, 0);
  }
  void broadcast(void* data, std::size_t bytes, int root, Deadline deadline) override {
    real_.broadcast(data, bytes, root, deadline);
    spoil(data, bytes / 2 / sizeof(float) * sizeof(float));
  }
  [[nodiscard]] std::string description() const override { return "spoiled"; }

 private:
  void spoil(void* data, std::size_t at) const {
    if (topology_.rank == topology_.size - 1) *(static_cast<unsigned char*>(data) + at + 3) ^= 0x40;
  }
  comm::DataPlane& real_;
  const comm::Topology& topology_;
};

/// A communicator whose data plane is a Plane, which wraps the real communicator's data plane.
template <class Plane>
class WrappedCommunicator final : public comm::Communicator {
 public:
  explicit WrappedCommunicator(std::unique_ptr<comm::Communicator> real)
      : real_(std::move(real)), plane_(real_->data(), real_->topology()) {}
  [[nodiscard]] const comm::Topology& topology() const override { return real_->topology(); }
  [[nodiscard]] comm::ControlPlane& control() override { return real_->control(); }
  [[nodiscard]] comm::DataPlane& data() override { return plane_; }
  [[nodiscard]] std::string_view backend() const override { return real_->backend(); }
  [[nodiscard]] std::string library() const override { return real_->library(); }

 private:
  std::unique_ptr<comm::Communicator> real_;
  Plane plane_;
};

TEST(CollSession, AWrongElementOnOneRankIsFoundInEveryCollective) {
  CollOptions options = quick_coll();
  options.collectives.pop_back();  // removes the barrier, which has no result
  constexpr int kRanks = 3;
  auto real = comm::make_loopback(kRanks);
  CollResult result;
  run_rank_threads(
      kRanks,
      [&](int rank) {
        std::vector<std::unique_ptr<comm::Communicator>> own;
        own.push_back(
            std::make_unique<WrappedCommunicator<SpoiledPlane>>(std::move(real[static_cast<std::size_t>(rank)])));
        CollResult own_result = run_coll_rank(options, own, {});
        if (rank == 0) result = std::move(own_result);
      },
      [](const std::string&) {});
  EXPECT_EQ(result.exit_code(), 1);
  for (const CellResult& cell : result.cells) {
    EXPECT_EQ(cell.wrong, std::optional<std::uint64_t>(1))
        << name(cell.cell.problem.collective) << (cell.cell.problem.in_place ? ", in place" : "") << ", " << cell.bytes;
  }
}

/// A data plane with correct results. After `left_` all-reduces, each all-reduce fails as if rank 1 were lost.
class FailingPlane final : public SpoiledPlane {
 public:
  FailingPlane(comm::DataPlane& real, const comm::Topology& topology) : SpoiledPlane(real, topology), real_(real) {}
  void all_reduce(void* data, std::size_t count, DataType type, ReduceOp op, Deadline deadline) override {
    if (--left_ < 0) throw Error(Errc::kPeerLost, "rank 1 is lost");
    real_.all_reduce(data, count, type, op, deadline);
  }

 private:
  comm::DataPlane& real_;
  int left_ = 20'000;  // all-reduces until the fault, more than warm-up and the search for a batch size need
};

TEST(CollSession, ALostRankLeavesWhatWasMeasured) {
  CollOptions options = quick_coll();
  options.collectives = {MeasuredCollective::kAllReduce};
  options.place = Place::kInPlace;
  options.least_samples = 100'000;
  options.max_seconds = 1000;
  options.target_interval = 1e-9;
  options.sizes = {4096};
  auto real = comm::make_loopback(2);
  std::optional<CollResult> kept;
  CollObserver observer;
  observer.finished = [&](const CollResult& result) { kept = result; };
  std::string thrown;
  run_rank_threads(
      2,
      [&](int rank) {
        std::vector<std::unique_ptr<comm::Communicator>> own;
        auto& plain = real[static_cast<std::size_t>(rank)];
        if (rank == 1) own.push_back(std::make_unique<WrappedCommunicator<FailingPlane>>(std::move(plain)));
        if (rank == 0) own.push_back(std::move(plain));
        try {
          run_coll_rank(options, own, rank == 0 ? observer : CollObserver{});
        } catch (const Error& error) {
          if (rank == 0) thrown = error.what();
        }
      },
      [](const std::string&) {});
  ASSERT_TRUE(kept) << thrown;
  EXPECT_NE(thrown.find("rank 1 is lost"), std::string::npos) << thrown;
  EXPECT_EQ(kept->interrupted, thrown);
  ASSERT_EQ(kept->cells.size(), 1U);
  EXPECT_EQ(kept->cells[0].stop_reason, "the session failed");
  EXPECT_GT(kept->cells[0].samples, 0U);
  EXPECT_GT(kept->cells[0].seconds.value, 0);
}

TEST(CollSession, RanksThatWantDifferentThingsAllGetTheSameError) {
  constexpr int kRanks = 2;
  auto ranks = comm::make_loopback(kRanks);
  std::vector<std::string> told(kRanks);
  run_rank_threads(
      kRanks,
      [&](int rank) {
        CollOptions options = quick_coll();
        if (rank == 1) options.types = {DataType::kF64};
        std::vector<std::unique_ptr<comm::Communicator>> own;
        own.push_back(std::move(ranks[static_cast<std::size_t>(rank)]));
        try {
          run_coll_rank(options, own, {});
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), Errc::kMismatch);
          told[static_cast<std::size_t>(rank)] = error.what();
        }
      },
      [](const std::string&) {});
  EXPECT_EQ(told[0], told[1]);
  EXPECT_NE(told[0].find("-d is float on rank 0"), std::string::npos) << told[0];
}

}  // namespace
}  // namespace hvd::bench::coll_session_test
