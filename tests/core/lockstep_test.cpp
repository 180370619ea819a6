// Runs random worlds in lockstep. The test draws in advance what every rank will submit. The outcome of every tensor is
// therefore known without running the protocol, and the test checks that the protocol gives this outcome.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/core/lockstep_world.h"

namespace hvd::core::lockstep_test {
namespace {

struct Params {
  int ranks = 1;
  std::size_t names = 8;   ///< number of tensors
  std::size_t rounds = 4;  ///< how often each tensor is submitted
  std::size_t capacity = 1024;
  std::uint64_t seed = 0;
  bool deviate = true;     ///< some ranks now and then submit a tensor in another form
  bool mid_cycle = false;  ///< ranks also submit between the phases of a cycle
};

std::string describe(const Params& p) {
  return "ranks " + std::to_string(p.ranks) + ", names " + std::to_string(p.names) + ", rounds " +
         std::to_string(p.rounds) + ", capacity " + std::to_string(p.capacity) + ", seed " + std::to_string(p.seed) +
         (p.deviate ? ", deviate" : "") + (p.mid_cycle ? ", mid cycle" : "");
}

/// A random world drawn from one seed, and the outcome that its negotiation must have.
class Scenario {
 public:
  explicit Scenario(const Params& params)
      : params_(params), random_(params.seed), world_(params.ranks, negotiator_options()), ranks_(world_.size()) {
    draw_requests();
    for (Rank& rank : ranks_) {
      rank.next_round.assign(params.names, 0);
      rank.pending.assign(params.names, false);
    }
  }

  void run() {
    // Each submission and each completion takes a few ticks. A world that needs more ticks than this hangs.
    const std::size_t most_ticks = 200 * (params_.names * params_.rounds + 10);
    for (std::size_t tick = 0; !finished(); ++tick) {
      ASSERT_LT(tick, most_ticks) << "hangs";
      for (std::size_t r = 0; r < ranks_.size(); ++r) act(r);
      if (world_.all_have_pending()) {
        ASSERT_NO_FATAL_FAILURE(cycle());
      }
    }
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      EXPECT_FALSE(world_[r].has_pending());
      for (std::size_t n = 0; n < params_.names; ++n) {
        ASSERT_FALSE(ranks_[r].pending[n]) << "tensor " << n << " never completed on rank " << r;
        ASSERT_EQ(ranks_[r].next_round[n], params_.rounds);
      }
    }
  }

  [[nodiscard]] const CycleStats& stats() { return world_[0].stats(); }
  [[nodiscard]] std::size_t mismatches() const { return mismatches_; }
  [[nodiscard]] std::size_t gathers() const { return gathers_; }
  [[nodiscard]] std::size_t by_place() const { return by_place_; }

 private:
  struct Rank {
    std::vector<std::size_t> next_round;  // [tensor]: the round that the rank submits next
    std::vector<bool> pending;            // [tensor]: the rank has submitted the tensor and waits for it
    std::map<std::size_t, std::pair<Request, CachedAt>> cached;
  };

  std::size_t below(std::size_t limit) { return static_cast<std::size_t>(random_() % limit); }

  NegotiatorOptions negotiator_options() {
    NegotiatorOptions options;
    options.cache_capacity = params_.capacity;
    const std::size_t thresholds[] = {0, 100, 5000, std::size_t{1} << 27};
    options.fusion.threshold_bytes = threshold_bytes_ = thresholds[below(4)];
    return options;
  }

  Request draw(std::size_t name) {
    static constexpr DataType kTypes[] = {DataType::kF32, DataType::kF32, DataType::kF16};
    static constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMax};
    Request request{"tensor_" + std::to_string(name), kTypes[below(3)], ReduceOp::kSum, {}};
    // At least half of all requests are plain all_reduces, so that the test also covers fusion.
    if (below(2) == 0) request.terms.kind = static_cast<Collective>(below(kCollectives));
    const Collective kind = request.terms.kind;
    const bool by_rows = kind == Collective::kAllGather || kind == Collective::kReduceScatter;
    const auto extent = [this] { return static_cast<std::int64_t>(below(30)); };
    for (std::size_t d = below(3) + (by_rows ? 1 : 0); d > 0; --d) request.shape.push_back(extent());
    if (kind == Collective::kGroupedAllReduce) {
      request.shape.clear();
      for (std::size_t tensors = 1 + below(3); tensors > 0; --tensors) {
        append_shape(request.shape, std::vector<std::int64_t>{extent(), 2});
      }
    }
    if (kind == Collective::kBroadcast) request.terms.root = static_cast<std::int32_t>(below(ranks_.size()));
    if (kind <= Collective::kGroupedAllReduce || kind == Collective::kReduceScatter) {
      request.op = kOps[below(4)];
      if (below(6) == 0) request.terms.prescale = 0.5;
      if (below(6) == 0) request.terms.postscale = 3;
    }
    return request;
  }

  /// In half of all rounds, each rank of an all_gather gets its own random number of rows.
  void draw_rows(std::vector<Request>& forms) {
    if (below(2) == 0) return;
    for (Request& form : forms) {
      if (form.terms.kind == Collective::kAllGather) form.shape.front() = static_cast<std::int64_t>(below(30));
    }
  }

  void draw_requests() {
    for (std::size_t n = 0; n < params_.names; ++n) {
      Request form = draw(n);
      for (std::size_t round = 0; round < params_.rounds; ++round) {
        if (params_.deviate && below(5) == 0) form = draw(n);  // all ranks change to the new form together
        auto& forms = forms_[{n, round}];
        forms.assign(ranks_.size(), form);
        if (params_.deviate && below(6) == 0) {
          for (std::size_t few = 1 + below(2); few > 0; --few) forms[below(forms.size())] = draw(n);
        }
        draw_rows(forms);
      }
    }
  }

  /// Lets rank `r` submit at random. Called once per tick. With `mid_cycle` also called between two phases
  /// of a cycle.
  void act(std::size_t r) {
    Rank& rank = ranks_[r];
    for (std::size_t count = below(4); count > 0; --count) {
      const std::size_t start = below(params_.names);
      for (std::size_t i = 0; i < params_.names; ++i) {
        const std::size_t n = (start + i) % params_.names;
        if (rank.pending[n] || rank.next_round[n] == params_.rounds) continue;
        submit(r, n);
        rank.pending[n] = true;
        break;
      }
    }
  }

  /// Submits as the engine does: by the tensor's place in the cache if the tensor has a place and its form has not
  /// changed. Uses the tensor's number as its tag.
  void submit(std::size_t r, std::size_t n) {
    Rank& rank = ranks_[r];
    const auto tag = static_cast<Tag>(n);
    const Request& form = forms_.at({n, rank.next_round[n]})[r];
    auto& [known, at] = rank.cached[n];
    if (known == form && world_[r].submit_cached(at, tag)) {
      ++by_place_;
      return;
    }
    known = form;
    at = world_[r].submit(form, tag).value_or(CachedAt{});
  }

  /// Returns true if every rank's last round of every tensor is complete.
  [[nodiscard]] bool finished() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [&](const Rank& rank) {
      return std::all_of(rank.next_round.begin(), rank.next_round.end(),
                         [&](std::size_t round) { return round == params_.rounds; });
    });
  }

  void cycle() {
    if (below(10) == 0) world_[below(ranks_.size())].report_pending();
    std::function<void()> between;
    if (params_.mid_cycle) {
      between = [this] { act(below(ranks_.size())); };
    }
    // A cycle must complete every tensor that is pending on all ranks when the cycle begins.
    std::vector<bool> ready(params_.names, true);
    for (const Rank& rank : ranks_) {
      for (std::size_t n = 0; n < params_.names; ++n) ready[n] = ready[n] && rank.pending[n];
    }
    const auto done = world_.cycle(between);

    for (std::size_t r = 0; r < done.size(); ++r) {
      for (const Batch& batch : done[r].batches) ASSERT_NO_FATAL_FAILURE(complete(r, batch));
      ASSERT_EQ(done[r].batches, done[0].batches) << "rank " << r << " executes something else";
    }
    for (std::size_t n = 0; n < params_.names; ++n) {
      for (const Rank& rank : ranks_) ASSERT_FALSE(ready[n] && rank.pending[n]);
    }
    ASSERT_NO_FATAL_FAILURE(compare_caches());
  }

  void complete(std::size_t r, const Batch& batch) {
    Rank& rank = ranks_[r];
    std::size_t bytes = 0;
    ASSERT_FALSE(batch.names.empty());
    if (!batch.error.empty()) {
      ASSERT_EQ(batch.names.size(), 1U);
    }
    ASSERT_EQ(batch.tags.size(), batch.names.size());
    for (std::size_t i = 0; i < batch.names.size(); ++i) {
      const std::string name(batch.names[i]);
      const auto n = static_cast<std::size_t>(std::stoul(name.substr(name.find('_') + 1)));
      ASSERT_EQ(batch.tags[i], n);
      ASSERT_TRUE(rank.pending[n]) << name << " completed on rank " << r << " without being pending";
      rank.pending[n] = false;
      const auto& forms = forms_.at({n, rank.next_round[n]++});
      const bool alike = std::all_of(forms.begin(), forms.end(), [&](const Request& f) { return f.matches(forms[0]); });
      if (batch.error.empty()) {
        ASSERT_TRUE(alike) << name << " was reduced although ranks differ";
        ASSERT_EQ(batch.dtype, forms[r].dtype);
        ASSERT_EQ(batch.op, forms[r].op);
        ASSERT_EQ(batch.terms, forms[r].terms);
        ASSERT_TRUE(batch.names.size() == 1 || batch.terms.kind == Collective::kAllReduce);
        ASSERT_NO_FATAL_FAILURE(expect_rows(batch, forms));
        bytes += batch.rows.empty() ? forms[r].bytes() : gathered_bytes(forms[r], batch.rows);
      } else {
        ++mismatches_;
        ASSERT_FALSE(alike) << batch.error;
        ASSERT_NE(batch.error.find("'" + name + "'"), std::string::npos);
      }
    }
    if (batch.error.empty()) {
      ASSERT_EQ(batch.bytes, bytes);
      ASSERT_TRUE(batch.names.size() == 1 || bytes <= threshold_bytes_);
    }
  }

  void expect_rows(const Batch& batch, const std::vector<Request>& forms) {
    std::vector<std::int64_t> rows;
    if (batch.terms.kind == Collective::kAllGather) {
      for (const Request& form : forms) rows.push_back(form.shape.front());
      ++gathers_;
    }
    ASSERT_EQ(batch.rows, rows);
  }

  /// Compares the cache histories of all ranks. Comparing contents takes long, so only one random rank's contents are
  /// compared with rank 0's.
  void compare_caches() {
    const ResponseCache& first = world_[0].cache();
    ASSERT_LE(first.size(), params_.capacity);
    for (std::size_t r = 1; r < ranks_.size(); ++r) {
      ASSERT_EQ(world_[r].cache().history(), first.history());
      ASSERT_EQ(world_[r].stats().coordinated, world_[0].stats().coordinated);
      ASSERT_EQ(world_[r].stats().invalidated, world_[0].stats().invalidated);
    }
    const ResponseCache& other = world_[below(ranks_.size())].cache();
    ASSERT_EQ(other.bit_count(), first.bit_count());
    ASSERT_EQ(other.next_victim(), first.next_victim());
    for (std::size_t bit = 0; bit < first.bit_count(); ++bit) {
      ASSERT_EQ(other.holds(bit), first.holds(bit));
      if (first.holds(bit)) {
        ASSERT_TRUE(other.at(bit).matches(first.at(bit)));
        ASSERT_EQ(other.rows(bit), first.rows(bit));
      }
    }
  }

  Params params_;
  std::mt19937_64 random_;
  std::size_t threshold_bytes_ = 0;  // declared before world_, because constructing world_ sets it
  test::LockstepWorld world_;
  std::vector<Rank> ranks_;
  std::map<std::pair<std::size_t, std::size_t>, std::vector<Request>> forms_;  // (tensor, round) -> [rank] request
  std::size_t mismatches_ = 0, gathers_ = 0, by_place_ = 0;
};

class Lockstep : public ::testing::TestWithParam<int> {};

TEST_P(Lockstep, EveryRankExecutesTheSameAndNobodyHangs) {
  const int ranks = GetParam();
  const std::uint64_t seeds = ranks <= 7 ? 800 : ranks <= 64 ? 80 : 16;
  std::size_t mismatches = 0, gathers = 0, by_place = 0;
  std::uint64_t fast = 0, coordinated = 0, invalidated = 0;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    const std::size_t capacities[] = {0, 1, 3, 1024};
    Params params;
    params.ranks = ranks;
    params.capacity = capacities[seed % 4];
    params.names = 1 + seed * 7 % (ranks < 512 ? 20 : 10);
    params.rounds = ranks < 512 ? 6 : 4;
    params.seed = seed * 1000 + static_cast<std::uint64_t>(ranks);
    params.deviate = seed % 3 != 0;
    params.mid_cycle = seed / 4 % 2 == 1;
    SCOPED_TRACE(describe(params));
    Scenario scenario(params);
    scenario.run();
    if (HasFatalFailure()) return;
    mismatches += scenario.mismatches();
    gathers += scenario.gathers();
    by_place += scenario.by_place();
    fast += scenario.stats().fast_cycles;
    coordinated += scenario.stats().coordinated;
    invalidated += scenario.stats().invalidated;
  }
  // The seeds must have produced every case that this test is meant to cover.
  EXPECT_GT(gathers, 0U);
  EXPECT_GT(by_place, 0U);
  EXPECT_GT(fast, 0U);
  EXPECT_GT(coordinated, 0U);
  EXPECT_GT(invalidated, 0U);
  EXPECT_EQ(mismatches > 0, ranks > 1);
}

INSTANTIATE_TEST_SUITE_P(Ranks, Lockstep, ::testing::Values(1, 2, 7, 64, 512));

// Simulates a training run: every step submits the same tensors, in a different order on every rank.
TEST(LockstepTraining, AfterTheFirstStepNoCycleNeedsTheCoordinator) {
  constexpr std::size_t kTensors = 300;
  constexpr std::uint64_t kSeed = 42;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  std::mt19937_64 random(kSeed);
  test::LockstepWorld world(64, {});
  for (int step = 0; step < 4; ++step) {
    std::vector<Batch> first;
    for (std::size_t r = 0; r < world.size(); ++r) {
      std::vector<std::size_t> order(kTensors);
      for (std::size_t i = 0; i < kTensors; ++i) order[i] = i;
      std::shuffle(order.begin(), order.end(), random);
      for (const std::size_t i : order) {
        world[r].submit({"gradient_" + std::to_string(i), DataType::kF32, ReduceOp::kAverage, {64, 3}});
      }
    }
    const auto done = world.cycle();
    for (const CycleDone& rank : done) {
      ASSERT_EQ(rank.batches.size(), 1U);
      ASSERT_EQ(rank.batches[0].names.size(), kTensors);
      ASSERT_EQ(rank.batches, done[0].batches);
    }
  }
  EXPECT_EQ(world[63].stats().coordinated, 1U);
  EXPECT_EQ(world[63].stats().fast_cycles, 3U);
}

}  // namespace
}  // namespace hvd::core::lockstep_test
