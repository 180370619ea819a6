// Compares the simulator, which goes from collective to collective, with a program that goes in small steps of time and
// knows nothing of the simulator's arithmetic.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <random>
#include <string>
#include <vector>

#include "engine/sim/step_simulator.h"

namespace hvd::sim::small_time_steps_test {
namespace {

constexpr double kTick = 5e-5;

struct Outcome {
  double step = 0, overlapped = 0;
  std::size_t cycles = 0;
};

/// One step of a world whose reductions and cycles all take the same time, without fusion and update.
class SmallSteps {
 public:
  explicit SmallSteps(const World& world) : world_(world), ranks_(world.noise.nodes[0].size()) {
    for (std::size_t r = 0; r < ranks_.size(); ++r) ranks_[r].factor = world.noise.nodes[0][r][0];
  }

  Outcome run() {
    while (reduced_ < gradients() || computing()) {
      compute();
      out_.step += kTick;
      if (doing_ != Doing::kNothing && out_.step >= until_) finish_work();
      if (doing_ == Doing::kNothing && reduced_ < gradients()) start_work();
    }
    return out_;
  }

 private:
  enum class Doing { kNothing, kCycle, kReduction };
  struct Rank {
    double factor = 1, computed = 0;
    std::size_t ready = 0;
    bool in_cycle = false;
    std::size_t brought = 0;  // gradients that were ready when the rank came to the cycle
  };

  [[nodiscard]] std::size_t gradients() const { return world_.profile.gradients.size(); }
  [[nodiscard]] bool computing(const Rank& rank) const {
    return rank.computed < rank.factor * world_.profile.backward_end_seconds;
  }
  [[nodiscard]] bool computing() const {
    return std::any_of(ranks_.begin(), ranks_.end(), [this](const Rank& rank) { return computing(rank); });
  }

  void compute() {
    for (Rank& rank : ranks_) {
      const bool slowed = doing_ == Doing::kReduction && computing(rank);
      if (slowed) out_.overlapped += kTick / static_cast<double>(ranks_.size());
      rank.computed += kTick * (slowed ? 1 - world_.costs.overlap_slowdown : 1);
      const auto& all = world_.profile.gradients;
      while (rank.ready < all.size() && rank.factor * all[rank.ready].ready_seconds <= rank.computed) ++rank.ready;
    }
  }

  void finish_work() {
    if (doing_ == Doing::kReduction) {
      ++reduced_;
      --agreed_;
    }
    doing_ = agreed_ > 0 ? Doing::kReduction : Doing::kNothing;
    if (agreed_ > 0) until_ += world_.costs.all_reduce.seconds(1);
  }

  void start_work() {
    bool all_came = true;
    std::size_t common = gradients();
    for (Rank& rank : ranks_) {
      if (!rank.in_cycle) rank.brought = rank.ready;
      rank.in_cycle = rank.brought > reduced_;
      all_came = all_came && rank.in_cycle;
      common = std::min(common, rank.brought);
    }
    if (!all_came) return;
    const bool negotiates = world_.schedule == Schedule::kNegotiated;
    for (Rank& rank : ranks_) rank.in_cycle = false;
    agreed_ = negotiates ? common - reduced_ : 1;
    out_.cycles += negotiates ? 1 : 0;
    doing_ = negotiates ? Doing::kCycle : Doing::kReduction;
    until_ = out_.step + (negotiates ? world_.costs.cycle_seconds : world_.costs.all_reduce.seconds(1));
  }

  const World& world_;
  std::vector<Rank> ranks_;
  Outcome out_;
  Doing doing_ = Doing::kNothing;
  double until_ = 0;
  std::size_t reduced_ = 0, agreed_ = 0;
};

TEST(SmallTimeSteps, LeadToTheSameStep) {
  for (unsigned seed = 1; seed <= 60; ++seed) {
    std::mt19937 random(seed);
    const auto draw = [&](double low, double high) { return std::uniform_real_distribution(low, high)(random); };
    World world;
    world.schedule = seed % 2 == 0 ? Schedule::kStatic : Schedule::kNegotiated;
    world.ranks = {static_cast<int>(1 + seed / 2 % 4), 4};
    world.noise.nodes.emplace_back();
    for (int r = 0; r < world.ranks.count; ++r) world.noise.nodes[0].push_back({draw(0.8, 1.3)});
    double ready = 0.3;
    for (std::size_t g = 0; g < 3 + seed % 7; ++g) {
      ready += draw(0, 0.2);
      world.profile.gradients.push_back({g * 100000, 100000, ready, ready});
      world.buckets.push_back({g, g + 1, g * 100000, 100000});
    }
    world.profile.backward_end_seconds = ready + draw(0, 0.1);
    world.costs.all_reduce = CostTable({{1, draw(0.02, 0.25)}});
    world.costs.cycle_seconds = draw(0.005, 0.03);
    world.costs.overlap_slowdown = 0.25 * (seed / 3 % 5);
    world.negotiation.fusion.threshold_bytes = 0;

    const Outcome expected = SmallSteps(world).run();
    const StepResult step = StepSimulator(world).step();
    SCOPED_TRACE("seed " + std::to_string(seed));
    // Each collective and each rank may be late by one small step.
    const double tolerance = kTick * static_cast<double>(2 * world.buckets.size() + 2);
    EXPECT_NEAR(step.step, expected.step, tolerance);
    EXPECT_NEAR(step.overlapped, expected.overlapped, tolerance);
    EXPECT_EQ(step.cycles, expected.cycles);
  }
}

}  // namespace
}  // namespace hvd::sim::small_time_steps_test
