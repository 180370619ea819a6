#include "engine/sim/step_simulator.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/thresholds.h"

namespace hvd::sim {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void require(bool good, const char* what) {
  if (!good) throw Error(Errc::kInvalidArgument, fmt::format("simulation: {}", what));
}

bool is_time(double value) { return std::isfinite(value) && value >= 0; }

void check(const World& world) {
  const StepProfile& profile = world.profile;
  const Costs& costs = world.costs;
  require(world.ranks.count >= 1 && world.ranks.per_node >= 1, "a world needs ranks");
  require(!profile.gradients.empty(), "the profile has no gradients");
  require(is_time(profile.backward_end_seconds) && is_time(profile.update_seconds) &&
              std::all_of(profile.gradients.begin(), profile.gradients.end(),
                          [](const Gradient& g) { return is_time(g.submit_seconds) && is_time(g.ready_seconds); }),
          "a time of the profile is negative or not finite");
  require(is_time(costs.cycle_seconds) && is_time(costs.copy_seconds_per_byte) &&
              std::all_of(costs.bucket_seconds.begin(), costs.bucket_seconds.end(), is_time),
          "a cost is negative or not finite");
  require(costs.overlap_slowdown >= 0 && costs.overlap_slowdown <= 1, "the slowdown by overlap is not in [0, 1]");
  require(std::isfinite(world.compute_factor) && world.compute_factor > 0, "the compute factor is not positive");
  require(world.noise.block_steps >= 1, "a block of noise has no step");
  const bool sharded = world.schedule == Schedule::kSharded;
  const CostTable& reduction = sharded ? costs.reduce_scatter : costs.all_reduce;
  const bool buckets_timed = by_bucket(world.schedule) && !costs.bucket_seconds.empty();
  require(world.schedule == Schedule::kNone || buckets_timed || !reduction.empty(), "no reduction was measured");
  require(!sharded || !costs.all_gather.empty(), "no all_gather was measured");
  if (!by_bucket(world.schedule)) return;
  std::size_t next = 0;
  for (const core::Bucket& bucket : world.buckets) {
    require(bucket.first == next && bucket.last > next, "the buckets do not hold every gradient once, in order");
    next = bucket.last;
  }
  require(next == profile.gradients.size(), "the buckets do not hold every gradient once, in order");
  require(!buckets_timed || costs.bucket_seconds.size() == world.buckets.size(), "some buckets were not timed");
}

/// Ranks report gradients in one order, so none is submitted or ready before the gradient in front of it.
World in_order(World world) {
  check(world);
  double submitted = 0, ready = 0;
  for (Gradient& gradient : world.profile.gradients) {
    gradient.submit_seconds = submitted = std::max(submitted, gradient.submit_seconds);
    gradient.ready_seconds = ready = std::max(ready, gradient.ready_seconds);
  }
  return world;
}

}  // namespace

StepSimulator::StepSimulator(World world)
    : world_(in_order(std::move(world))),
      noise_(world_.noise, world_.ranks, world_.seed),
      collective_noise_(world_.seed, kCollectiveStream),
      factors_(static_cast<std::size_t>(world_.ranks.count)),
      ranks_(factors_.size()) {
  if (world_.schedule == Schedule::kNegotiated) batches_.emplace(world_.profile, world_.negotiation);
}

StepResult StepSimulator::step() {
  begin_step();
  if (by_bucket(world_.schedule)) run_buckets();
  if (world_.schedule == Schedule::kNegotiated) run_cycles();
  return finish_step();
}

void StepSimulator::begin_step() {
  // Time counts from the first rank's begin, so that long runs lose no precision.
  double origin = kInfinity;
  for (const Rank& rank : ranks_) origin = std::min(origin, rank.end);
  engine_free_ -= origin;
  stream_free_ -= origin;
  noise_.draw(steps_++, factors_);
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    ranks_[r] = {.begin = ranks_[r].end - origin, .pace = world_.compute_factor * factors_[r]};
  }
  last_cycle_ = {};
  reduce_ = copy_ = 0;
  result_ = {};
}

void StepSimulator::run_buckets() {
  const std::vector<double>& measured = world_.costs.bucket_seconds;
  const Costs& costs = world_.costs;
  const auto seconds_of = [&](std::size_t bytes) {
    if (world_.schedule != Schedule::kSharded) return all_reduce_seconds(bytes);
    return duration(costs.reduce_scatter, costs.small_reduce_scatter, Thresholds{}.is_direct(bytes), bytes);
  };
  for (std::size_t b = 0; b < world_.buckets.size(); ++b) {
    const core::Bucket& bucket = world_.buckets[b];
    const double begin = std::max(engine_free_, slowest_ready(bucket.last - 1));
    const double seconds = measured.empty() ? seconds_of(bucket.count * size_of(world_.profile.dtype)) : measured[b];
    overlap(begin, begin + seconds);
    engine_free_ = begin + seconds;
  }
  result_.batches = world_.buckets.size();
}

void StepSimulator::run_cycles() {
  for (std::size_t agreed = 0; agreed < world_.profile.gradients.size();) {
    std::size_t common = 0;
    engine_free_ = arrive(agreed, common) + world_.costs.cycle_seconds;
    for (Rank& rank : ranks_) rank.control += engine_free_;
    ++result_.cycles;
    last_cycle_ = {.gradients = common - agreed};
    for (const Batch& batch : batches_->agree(agreed, common)) {
      run_batch(batch);
      last_cycle_.bytes += batch.bytes;
    }
    agreed = common;
  }
}

double StepSimulator::arrive(std::size_t agreed, std::size_t& common) {
  const std::size_t gradients = world_.profile.gradients.size();
  double last = -kInfinity;
  common = gradients;
  for (Rank& rank : ranks_) {
    const double now = arrival(rank, agreed);
    while (rank.submitted < gradients && submit_at(rank, rank.submitted) <= now) ++rank.submitted;
    common = std::min(common, rank.submitted);
    rank.control -= now;
    last = std::max(last, now);
  }
  return last;
}

double StepSimulator::arrival(const Rank& rank, std::size_t agreed) const {
  core::CycleResult cycle = last_cycle_;
  cycle.gradients_to_come = submit_at(rank, world_.profile.gradients.size() - 1) > engine_free_;
  const double free = engine_free_ + std::chrono::duration<double>(core::pause_after(cycle)).count();
  return std::max(free, submit_at(rank, agreed));
}

void StepSimulator::run_batch(const Batch& batch) {
  const bool on_stream = world_.reducer != Reducer::kEngineThread;
  const double begin = on_stream ? std::max({engine_free_, stream_free_, slowest_ready(batch.last)}) : engine_free_;
  const double copy = batch.packed ? 2 * world_.costs.copy_seconds_per_byte * static_cast<double>(batch.bytes) : 0;
  double reduce = 0;
  for (const std::size_t bytes : batch.reductions) reduce += all_reduce_seconds(bytes);
  const double end = begin + copy + reduce;
  overlap(begin, end);
  copy_ += copy;
  reduce_ += reduce;
  stream_free_ = end;
  if (!on_stream) engine_free_ = end;
  ++result_.batches;
}

void StepSimulator::overlap(double begin, double end) {
  const double slowdown = world_.costs.overlap_slowdown;
  const double stretch = slowdown < 1 ? 1 / (1 - slowdown) : kInfinity;
  for (Rank& rank : ranks_) {
    const double left = at(rank, world_.profile.backward_end_seconds) - begin;
    if (left > 0) rank.overlapped += std::min(end - begin, left * stretch);
  }
}

double StepSimulator::duration(const CostTable& table, const CostTable& small, bool is_small, std::size_t bytes) {
  const bool in_small = is_small && !small.empty();
  const CostTable& used = in_small ? small : table;
  MessageSizes& sizes = messages_[in_small ? 1 : 0];
  sizes.least = sizes.most == 0 ? bytes : std::min(sizes.least, bytes);
  sizes.most = std::max(sizes.most, bytes);
  const double draw = collective_noise_.uniform(collectives_++);
  return used.seconds(bytes) * used.factor(bytes, draw);
}

double StepSimulator::all_reduce_seconds(std::size_t bytes) {
  const bool is_small = Thresholds{}.all_reduce(bytes) != Exchange::kRing;
  return duration(world_.costs.all_reduce, world_.costs.small_all_reduce, is_small, bytes);
}

double StepSimulator::slowest_ready(std::size_t gradient) const {
  double slowest = -kInfinity;
  for (const Rank& rank : ranks_) {
    slowest = std::max(slowest, at(rank, world_.profile.gradients[gradient].ready_seconds));
  }
  return slowest;
}

/// A GPU's kernels do not slow the host that launches them.
double StepSimulator::submit_at(const Rank& rank, std::size_t gradient) const {
  const double seconds = world_.profile.gradients[gradient].submit_seconds;
  return world_.reducer == Reducer::kEngineThread ? at(rank, seconds) : rank.begin + rank.pace * seconds;
}

StepResult StepSimulator::finish_step() {
  const bool sharded = world_.schedule == Schedule::kSharded;
  const double reduced = world_.schedule == Schedule::kNone ? -kInfinity : std::max(engine_free_, stream_free_);
  const auto count = static_cast<double>(ranks_.size());
  for (Rank& rank : ranks_) {
    const double computed = at(rank, world_.profile.backward_end_seconds);
    const double update = rank.pace * world_.profile.update_seconds / (sharded ? count : 1);
    rank.wait = std::max(0.0, reduced - computed);
    rank.end = std::max(computed, reduced) + update;
    result_.update += update / count;
    result_.overlapped += rank.overlapped / count;
  }
  if (sharded) gather_shares();
  const Rank& last =
      *std::min_element(ranks_.begin(), ranks_.end(), [](const Rank& a, const Rank& b) { return a.wait < b.wait; });
  const double engine = last.control + reduce_ + copy_;
  result_.control = last.control > 0 ? last.wait * last.control / engine : 0;
  result_.exposed = last.wait - result_.control;
  for (const Rank& rank : ranks_) {
    result_.stragglers += (rank.wait - last.wait) / count;
    result_.step = std::max(result_.step, rank.end - rank.begin);
  }
  result_.slowed = world_.costs.overlap_slowdown * result_.overlapped;
  return result_;
}

/// Every rank needs the weights that the others have updated.
void StepSimulator::gather_shares() {
  double gathered = -kInfinity;
  for (const Rank& rank : ranks_) gathered = std::max(gathered, rank.end);
  for (const core::Bucket& bucket : world_.buckets) {
    const std::size_t bytes = bucket.count * size_of(world_.profile.dtype);
    gathered += duration(world_.costs.all_gather, world_.costs.small_all_gather, Thresholds{}.is_direct(bytes), bytes);
  }
  for (Rank& rank : ranks_) {
    rank.wait += gathered - rank.end;
    rank.end = gathered;
  }
}

}  // namespace hvd::sim
