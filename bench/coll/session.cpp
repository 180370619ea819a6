#include "bench/coll/session.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include "bench/coll/gpu_rank.h"
#include "bench/coll/rank.h"
#include "bench/coll/schedule.h"
#include "bench/ranks.h"
#include "bench/result_store.h"
#include "bench/train/agreement.h"
#include "engine/base/error.h"

namespace hvd::bench::coll {
namespace {

/// Rank 0 asks for work in parcels of about this long, and looks for a signal between them.
constexpr double kParcelSeconds = 0.05;

/// Of a cell. More would take longer to resample than to measure.
constexpr std::size_t kMostSamples = 5000;

/// Rank 0.
class Conductor {
 public:
  Conductor(Rank& rank, const CollOptions& options, const CollObserver& observer, World world)
      : rank_(rank),
        options_(options),
        observer_(observer),
        schedule_(rank.cells(), rule_of(options)),
        wrong_(rank.cells().size()) {
    result_.world = std::move(world);
  }

  CollResult run() {
    result_.started_utc = utc_now();
    std::size_t clock_round = 0;
    read_clocks();
    while (!stopped()) {
      const std::vector<Visit> visits = schedule_.next(kParcelSeconds);
      if (visits.empty()) break;
      if (result_.world.nodes > 1 && std::exchange(clock_round, schedule_.round()) != schedule_.round()) read_clocks();
      sample(visits);
      if (options_.check) check_finished();
      narrate(visits.back());
    }
    rank_.ask({Task::kEnd, {}}, 0);
    result_.finished_utc = utc_now();
    result_.cells =
        results_of(rank_.cells(), schedule_, wrong_, result_.world, options_.link_gbit, result_.interrupted);
    result_.arena_bytes = rank_.arena_bytes();
    result_.cache_bytes = rank_.cache_bytes();
    for (const Variant& variant : options_.variants) result_.variants.push_back(variant.name);
    return std::move(result_);
  }

 private:
  static ScheduleRule rule_of(const CollOptions& options) {
    ScheduleRule rule;
    rule.stop.minimum_samples = std::max(options.least_samples, kFewestToBelieve);
    rule.stop.target_half_width = options.target_interval;
    rule.stop.maximum_samples = kMostSamples;
    rule.stop.maximum_seconds = options.max_seconds;
    rule.warmup = options.warmup;
    rule.may_batch = options.pace != Pace::kBarrierOutside;
    rule.seed = options.seed;
    return rule;
  }

  bool stopped() {
    if (observer_.stop_requested) result_.interrupted = observer_.stop_requested();
    return !result_.interrupted.empty();
  }

  /// Once there is a sample, and every half minute.
  void narrate(const Visit& last) {
    constexpr std::chrono::seconds kBetween(30);
    const bool due = narrated_ ? Clock::now() - *narrated_ >= kBetween : !schedule_.samples(last.cell).empty();
    if (!observer_.narrate || !due) return;
    narrated_ = Clock::now();
    observer_.narrate("coll: measuring, round " + std::to_string(schedule_.round()) + ", " +
                      std::to_string(schedule_.finished()) + " of " + std::to_string(rank_.cells().size()) +
                      " cells have enough samples\n");
  }

  void read_clocks() {
    for (const auto& uncertainty : rank_.ask({Task::kClock, {}}, 1)) {
      result_.world.clock_uncertainty =
          std::max(result_.world.clock_uncertainty, 1e-9 * static_cast<double>(uncertainty[0]));
    }
  }

  void sample(const std::vector<Visit>& visits) {
    const auto answers = rank_.ask({Task::kSample, visits}, 2 * visits.size());
    for (std::size_t i = 0; i < visits.size(); ++i) {
      VisitTimes times;
      for (const std::vector<std::int64_t>& of_rank : answers) {
        times.begin.push_back(of_rank[2 * i]);
        times.end.push_back(of_rank[2 * i + 1]);
      }
      schedule_.add(visits[i], times);
      finished_or_sampled_.push_back(visits[i].cell);
    }
  }

  /// Only cells that were just sampled can have become finished.
  void check_finished() {
    Order order{Task::kCheck, {}};
    for (const std::uint32_t cell : std::exchange(finished_or_sampled_, {})) {
      const Cell& of = rank_.cells()[cell];
      const bool has_result = of.variant != kBare && of.problem.collective != Collective::kBarrier;
      if (has_result && !wrong_[cell] && !schedule_.stop_reason(cell).empty()) order.visits.push_back({cell, 1});
    }
    if (order.visits.empty()) return;
    for (const Visit& visit : order.visits) wrong_[visit.cell] = 0;
    for (const std::vector<std::int64_t>& of_rank : rank_.ask(order, order.visits.size())) {
      for (std::size_t i = 0; i < order.visits.size(); ++i) {
        *wrong_[order.visits[i].cell] += static_cast<std::uint64_t>(of_rank[i]);
      }
    }
  }

  Rank& rank_;
  const CollOptions& options_;
  const CollObserver& observer_;
  Schedule schedule_;
  std::vector<std::optional<std::uint64_t>> wrong_;  // [cell]
  std::vector<std::uint32_t> finished_or_sampled_;   // since the last check_finished()
  std::optional<Clock::time_point> narrated_;
  CollResult result_;
};

/// What CollObserver::finished threw, or null.
std::exception_ptr hand_over(const CollResult& result, const CollObserver& observer) {
  try {
    if (observer.finished) observer.finished(result);
  } catch (const Error&) {
    return std::current_exception();
  }
  return nullptr;
}

std::vector<std::vector<std::unique_ptr<comm::Communicator>>> loopback_ranks(int count, const CollOptions& options) {
  std::vector<std::vector<std::unique_ptr<comm::Communicator>>> ranks(static_cast<std::size_t>(count));
  for (const Variant& variant : options.variants) {
    auto world = comm::make_loopback(count, variant.comm, variant.comm.ranks_per_node);
    for (std::size_t r = 0; r < ranks.size(); ++r) ranks[r].push_back(std::move(world[r]));
  }
  return ranks;
}

CollResult run_threads(int count, const Options& world, const CollOptions& options, const CollObserver& observer,
                       GpuBackend* gpus) {
  auto ranks = loopback_ranks(count, options);
  CollResult result;
  const auto body = [&](int rank) {
    // Destroyed on the thread that used them.
    const GpuRank own = connect(options, ranks[static_cast<std::size_t>(rank)], gpus, world.startup_deadline);
    CollResult found = run_coll_rank(options, own.variants, rank == 0 ? observer : CollObserver{},
                                     world.engine.deadline, own.gpu.get());
    if (rank == 0) result = std::move(found);
  };
  run_rank_threads(count, body, [&](const std::string& reason) {
    for (const auto& variant : ranks[0]) variant->control().abort(reason);
  });
  return result;
}

CollResult run_processes(const Options& world, const Launch& launch, const CollOptions& options,
                         const CollObserver& observer, GpuBackend* gpus) {
  const Patience startup = world.startup_deadline;
  GpuRank own;
  std::vector<std::unique_ptr<comm::Communicator>> variants;
  variants.push_back(comm::make_mpi(options.variants[0].comm));
  if (observer.joined) observer.joined();
  try {
    comm::Communicator& first = *variants[0];
    check_world(launch, first.topology().size, world);
    require_no_objection(first, rank_objection(launch, first.topology().rank), startup.from_now());
    require_agreement(first, wishes_of(options), startup.from_now());
    for (std::size_t i = 1; i < options.variants.size(); ++i) {
      variants.push_back(comm::make_mpi(options.variants[i].comm));
    }
    if (observer.met) observer.met(first.neighbours());
    own = connect(options, variants, gpus, startup);
    CollResult result = run_coll_rank(options, own.variants, observer, world.engine.deadline, own.gpu.get());
    if (observer.leaving) observer.leaving();
    return result;
  } catch (const std::exception&) {
    if (observer.leaving) observer.leaving();
    throw;
  }
}

}  // namespace

CollResult run_coll_rank(const CollOptions& options, Variants variants, const CollObserver& observer, Patience patience,
                         gpu::Runtime* gpu) {
  CollResult result;
  std::exception_ptr problem;
  std::optional<Rank> own;  // after a fault, its memory goes only when nothing on the GPU waits for a peer any more
  try {
    Rank& rank = own.emplace(options, variants, patience, gpu);
    rank.prepare();
    const comm::Topology& topology = variants[0]->topology();
    if (topology.rank == 0) {
      World world{topology.size,
                  topology.nodes,
                  std::string(variants[0]->backend()),
                  variants[0]->library(),
                  topology.hosts,
                  0,
                  gpu == nullptr ? std::string() : gpu->device().name};
      result = Conductor(rank, options, observer, std::move(world)).run();
      for (CellResult& cell : result.cells) {
        cell.plane = variants[static_cast<std::size_t>(cell.cell.variant)]->data().description();
      }
      problem = hand_over(result, observer);
    } else {
      rank.follow();
    }
    rank.barrier();
  } catch (const Error& error) {
    // These two are the same on all ranks, which know already.
    if (error.code() != Errc::kInvalidArgument && error.code() != Errc::kMismatch) abort_all(variants, error.what());
    throw;
  } catch (const std::exception& error) {
    abort_all(variants, error.what());
    throw;
  }
  if (problem) std::rethrow_exception(problem);
  return result;
}

CollResult run_coll(const Options& world, const CollOptions& options, const CollObserver& observer, GpuBackend* gpus) {
  const Launch launch = detect_launch(process_environment());
  switch (world_of(world, launch)) {
    case WorldKind::kSolo: {
      std::vector<std::unique_ptr<comm::Communicator>> variants;
      for (std::size_t i = 0; i < options.variants.size(); ++i) variants.push_back(comm::make_solo());
      const GpuRank own = connect(options, variants, gpus, world.startup_deadline);
      return run_coll_rank(options, own.variants, observer, world.engine.deadline, own.gpu.get());
    }
    case WorldKind::kThreads: return run_threads(std::max(1, world.ranks), world, options, observer, gpus);
    case WorldKind::kProcesses: break;
  }
  return run_processes(world, launch, options, observer, gpus);
}

}  // namespace hvd::bench::coll
