#include "bench/coll/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "bench/coll/gpu_rank.h"
#include "bench/coll/rank.h"
#include "bench/coll/schedule.h"
#include "bench/store/result_store.h"
#include "bench/tune/crossovers.h"
#include "bench/world/cores.h"
#include "bench/world/numa_facts.h"
#include "bench/world/ranks.h"
#include "bench/world/settings.h"
#include "engine/base/error.h"
#include "engine/base/mutex.h"

namespace hvd::bench::coll {
namespace {

/// Approximate seconds that one order of rank 0 takes. Rank 0 checks for a signal between orders.
constexpr double kParcelSeconds = 0.05;

/// Maximum samples of a cell, unless -n asks for more. Resampling more samples would take longer than measuring them.
constexpr std::size_t kMaxSamples = 5000;

/// Directs the session on rank 0.
class Leader {
 public:
  Leader(Rank& rank, const CollOptions& options, const CollObserver& observer, World world, Variants variants)
      : variants_(variants),
        rank_(rank),
        options_(options),
        observer_(observer),
        schedule_(rank.cells(), rule_of(options)),
        wrong_(rank.cells().size()) {
    result_.world = std::move(world);
  }

  /// Measures until all cells have ended or a signal asks the session to stop. Errors: those of the communicators.
  void run() {
    set_begin();
    std::size_t clock_round = 0;
    read_clocks();
    while (!stopped()) {
      const std::vector<Visit> visits = next_visits();
      if (visits.empty()) break;
      if (result_.world.nodes > 1 && std::exchange(clock_round, schedule_.round()) != schedule_.round()) read_clocks();
      sample(visits);
      if (options_.checks > 0) check_finished();
      narrate(visits.back());
    }
    rank_.ask({Task::kEnd, {}}, 0);
  }

  /// Returns the results so far. Any thread may call result(). `interrupted` is the signal or error that ended the
  /// session; if it is empty, result() uses the signal that run() noticed. `reason_of_cells` is the stop reason of all
  /// cells that have not ended; if it is empty, their stop reason is the signal or error that ended the session.
  CollResult result(const std::string& interrupted, const std::string& reason_of_cells) {
    const MutexLock lock(mutex_);
    CollResult result = result_;
    if (!interrupted.empty()) result.interrupted = interrupted;
    result.finished_utc = utc_now();
    result.cells = results_of(rank_.cells(), schedule_, wrong_, result.world, options_.link_gbit,
                              reason_of_cells.empty() ? result.interrupted : reason_of_cells);
    for (CellResult& cell : result.cells) {
      const auto variant = static_cast<std::size_t>(cell.cell.variant);
      if (variant < planes_.size()) cell.plane = planes_[variant];
    }
    result.arena_bytes = rank_.arena_bytes();
    result.cache_bytes = rank_.cache_bytes();
    for (const Variant& variant : options_.variants) result.variants.push_back(variant.name);
    return result;
  }

  /// Any thread may call has_samples().
  bool has_samples() {
    const MutexLock lock(mutex_);
    for (std::size_t cell = 0; cell < rank_.cells().size(); ++cell) {
      if (!schedule_.samples(cell).empty()) return true;
    }
    return false;
  }

 private:
  static ScheduleRule rule_of(const CollOptions& options) {
    ScheduleRule rule;
    rule.stop.minimum_samples = std::max(options.least_samples, kMinToBelieve);
    rule.stop.target_half_width = options.target_interval;
    rule.stop.maximum_samples = std::max(kMaxSamples, rule.stop.minimum_samples);
    rule.stop.maximum_seconds = options.max_seconds;
    rule.warmup = options.warmup;
    rule.untimed_first = options.warm;
    rule.may_batch = options.pace != Pace::kBarrierOutside;
    rule.max_batch = largest_batch(options);
    rule.launches = std::max<std::uint32_t>(1, options.graph_launches);
    rule.seed = options.seed;
    return rule;
  }

  void set_begin() {
    const MutexLock lock(mutex_);
    result_.started_utc = utc_now();
  }

  std::vector<Visit> next_visits() {
    const MutexLock lock(mutex_);
    return schedule_.next(kParcelSeconds);
  }

  bool stopped() {
    if (!observer_.stop_requested) return false;
    const std::string signal = observer_.stop_requested();
    const MutexLock lock(mutex_);
    result_.interrupted = signal;
    return !signal.empty();
  }

  /// Reports progress after the first sample and then every half minute.
  void narrate(const Visit& last) {
    constexpr std::chrono::seconds kBetween(30);
    const bool due = narrated_ ? Clock::now() - *narrated_ >= kBetween : !schedule_.samples(last.cell).empty();
    if (!observer_.narrate || !due) return;
    narrated_ = Clock::now();
    observer_.narrate(fmt::format("coll: measuring, round {}, {} of {} cells have enough samples\n", schedule_.round(),
                                  schedule_.finished(), rank_.cells().size()));
  }

  void read_clocks() {
    const auto answers = rank_.ask({Task::kClock, {}}, 1);
    const MutexLock lock(mutex_);
    for (const auto& uncertainty : answers) {
      result_.world.clock_uncertainty =
          std::max(result_.world.clock_uncertainty, 1e-9 * static_cast<double>(uncertainty[0]));
    }
  }

  void sample(const std::vector<Visit>& visits) {
    const auto answers = rank_.ask({Task::kSample, visits}, 2 * visits.size());
    const MutexLock lock(mutex_);
    for (std::size_t i = 0; i < visits.size(); ++i) {
      VisitTimes times;
      for (const std::vector<std::int64_t>& of_rank : answers) {
        times.begin.push_back(of_rank[2 * i]);
        times.end.push_back(of_rank[2 * i + 1]);
      }
      schedule_.add(visits[i], times);
    }
    planes_.clear();
    for (const auto& variant : variants_) planes_.push_back(variant->data().description());
  }

  /// Checks every cell that has ended since the last call. All cells of a group end at the same time, including cells
  /// that the last order did not sample.
  void check_finished() {
    if (schedule_.finished() == std::exchange(finished_, schedule_.finished())) return;
    Order order{Task::kCheck, {}};
    for (std::uint32_t cell = 0; cell < rank_.cells().size(); ++cell) {
      const Cell& measured = rank_.cells()[cell];
      const bool has_result = measured.variant != kBare && measured.problem.collective != MeasuredCollective::kBarrier;
      if (has_result && !wrong_[cell] && !schedule_.stop_reason(cell).empty()) order.visits.push_back({cell, 1});
    }
    if (order.visits.empty()) return;
    const auto answers = rank_.ask(order, order.visits.size());
    const MutexLock lock(mutex_);
    for (const Visit& visit : order.visits) wrong_[visit.cell] = 0;
    for (const std::vector<std::int64_t>& of_rank : answers) {
      for (std::size_t i = 0; i < order.visits.size(); ++i) {
        *wrong_[order.visits[i].cell] += static_cast<std::uint64_t>(of_rank[i]);
      }
    }
  }

  const Variants variants_;
  Rank& rank_;
  const CollOptions& options_;
  const CollObserver& observer_;
  // Only the session's thread changes planes_, schedule_, wrong_ and result_. The session's thread locks the mutex to
  // change one of these members, but not to read it, and does not hold the mutex while it waits for other ranks.
  Mutex mutex_;
  std::vector<std::string> planes_;  // [variant] DataPlane::description(), which is known after an operation
  Schedule schedule_;
  std::vector<std::optional<std::uint64_t>> wrong_;  // [cell]
  std::size_t finished_ = 0;                         // number of finished cells at the last check_finished()
  std::optional<Clock::time_point> narrated_;
  CollResult result_;
};

/// Gives the observer a snapshot function for the lifetime of this object.
class Offer {
 public:
  Offer(const CollObserver& observer, Leader& leader) : observer_(observer) {
    if (!observer_.snapshot) return;
    observer_.snapshot([&leader](const std::string& reason) -> std::optional<CollResult> {
      if (!leader.has_samples()) return std::nullopt;
      return leader.result(reason, reason);
    });
  }
  ~Offer() {
    if (observer_.snapshot) observer_.snapshot({});
  }
  Offer(const Offer&) = delete;
  Offer& operator=(const Offer&) = delete;

 private:
  const CollObserver& observer_;
};

/// Calls CollObserver::finished. Returns the error that `finished` threw, if any.
std::optional<Error> hand_over(const CollResult& result, const CollObserver& observer) {
  try {
    if (observer.finished) observer.finished(result);
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

std::vector<std::vector<std::unique_ptr<comm::Communicator>>> loopback_ranks(int count, const CollOptions& options) {
  std::vector<std::vector<std::unique_ptr<comm::Communicator>>> ranks(static_cast<std::size_t>(count));
  for (const Variant& variant : options.variants) {
    auto world = comm::make_loopback(count, variant.comm, variant.comm.ranks_per_node);
    for (std::size_t r = 0; r < ranks.size(); ++r) ranks[r].push_back(std::move(world[r]));
  }
  return ranks;
}

CollResult run_threads(const CollOptions& options, const CollObserver& observer, GpuBackend* gpus,
                       const ProcessStart& start) {
  const int count = std::max(1, options.ranks);
  auto ranks = loopback_ranks(count, options);
  CollResult result;
  const auto body = [&](int rank) {
    // `own` is a local variable, so that the thread that used the communicators also destroys them.
    const GpuRank own = connect(options, ranks[static_cast<std::size_t>(rank)], gpus, observer.nccl_log);
    CollResult own_result = run_coll_rank(options, own.variants, rank == 0 ? observer : CollObserver{}, own.gpu.get(),
                                          start.environment, own.facts);
    if (rank == 0) result = std::move(own_result);
  };
  run_rank_threads(count, body, [&](const std::string& reason) {
    for (const auto& variant : ranks[0]) variant->control().abort(reason);
  });
  return result;
}

/// Collective. Calls CollObserver::check_outputs on rank 0. Errors: on rank 0 the error of that call, on the other
/// ranks an AgreedError with its text; errors of the communicator.
void require_outputs(comm::Communicator& communicator, const CollObserver& observer, Deadline deadline) {
  std::exception_ptr fault;
  std::string text;
  if (communicator.topology().rank == 0 && observer.check_outputs) {
    try {
      observer.check_outputs();
    } catch (const Error& error) {
      fault = std::current_exception();
      text = error.what();
    }
  }
  const std::string agreed =
      comm::text_of(communicator.control().broadcast(std::as_bytes(std::span(text)), 0, deadline));
  if (fault) std::rethrow_exception(fault);
  if (!agreed.empty()) throw AgreedError(Errc::kInvalidArgument, agreed);
}

CollResult run_processes(const CollOptions& options, const CollObserver& observer, GpuBackend* gpus,
                         const ProcessStart& start) {
  const Launch& launch = start.launch;
  const Patience startup = options.startup_deadline;
  GpuRank own;
  std::vector<std::unique_ptr<comm::Communicator>> variants;
  variants.push_back(comm::make_mpi(options.variants[0].comm));
  if (observer.joined) observer.joined();
  try {
    comm::Communicator& first = *variants[0];
    check_world(launch, first.topology().size, options, first.library());
    require_no_objection(first, rank_objection(launch, first.topology().rank), startup.from_now());
    require_equal_settings(first, settings_of(options), startup.from_now());
    require_outputs(first, observer, startup.from_now());
    for (std::size_t i = 1; i < options.variants.size(); ++i) {
      variants.push_back(comm::make_mpi(options.variants[i].comm));
    }
    if (observer.met) observer.met(first.neighbours());
    own = connect(options, variants, gpus, observer.nccl_log);
    CollResult result = run_coll_rank(options, own.variants, observer, own.gpu.get(), start.environment, own.facts);
    if (observer.leaving) observer.leaving();
    return result;
  } catch (const std::exception&) {
    if (observer.leaving) observer.leaving();
    throw;
  }
}

/// Collective. Loads stored crossovers and gives them to the variants that have default thresholds. Returns the
/// crossovers if there is such a variant. Errors: invalid_argument, on all ranks, for --find-crossovers on one host.
std::optional<comm::Thresholds> recall_crossovers(const CollOptions& options, Variants variants) {
  comm::Communicator& first = *variants[0];
  if (options.find_crossovers) {
    if (first.topology().nodes > 1) return std::nullopt;
    throw Error(
        Errc::kInvalidArgument,
        "--find-crossovers compares algorithms between hosts, and all ranks are on one; start ranks on several");
  }
  const auto kept = kept_crossovers(first, options.tuning_folder, options.deadline.from_now());
  bool taken = false;
  for (std::size_t i = 0; kept && i < variants.size(); ++i) {
    comm::CommOptions with = options.variants[i].comm;
    if (with.algorithm != comm::Algorithm::kAuto || with.thresholds != comm::Thresholds{}) continue;
    with.thresholds = *kept;
    variants[i]->data().choose(with);
    taken = true;
  }
  return taken ? kept : std::nullopt;
}

NumaFacts numa_facts(const CollOptions& options, comm::Communicator& communicator, const Environment& environment) {
  const NumaKind kind{.threads = communicator.backend() == "loopback", .on_gpus = options.gpus};
  return gather_numa_facts(communicator.topology(), kind, environment,
                           [&](auto mine) { return communicator.control().gather(mine, options.deadline.from_now()); });
}

/// For rank 0, with --find-crossovers: computes the crossovers from the results and stores them.
void keep_found(const CollOptions& options, const comm::Communicator& communicator, CollResult& result) {
  if (!options.find_crossovers || result.exit_code() != 0) return;  // results are incomplete or wrong
  result.crossovers = crossovers_of(result.cells);
  if (options.tuning_folder.empty()) return;
  keep_crossovers(options.tuning_folder, crossover_case(communicator.topology(), communicator.library()),
                  *result.crossovers);
}

}  // namespace

CollResult run_coll_rank(const CollOptions& options, Variants variants, const CollObserver& observer,
                         gpu::GpuRuntime* gpu, const Environment& environment, const Provenance& gpu_facts) {
  CollResult result;
  std::optional<Error> problem;
  std::optional<Rank> own;  // declared here, so that after a fault the rank's memory is freed only after give_up()
  const auto give_up = [&](std::string_view reason) {
    abort_all(variants, reason, [&] {
      if (own) own->drop_graphs();
    });
  };
  try {
    std::optional<comm::Thresholds> kept;
    if (gpu == nullptr) kept = recall_crossovers(options, variants);
    Provenance facts = numa_facts(options, *variants[0], environment).provenance;
    Rank& rank = own.emplace(options, variants, gpu);
    rank.prepare();
    const comm::Topology& topology = variants[0]->topology();
    if (topology.rank == 0) {
      facts.insert(gpu_facts.begin(), gpu_facts.end());
      if (gpu != nullptr) add_caution(facts, "few_cpus", few_cpus(rank.cores(), topology.hosts));
      if (gpu == nullptr) add_caution(facts, "hardware_threads", rank.hardware_threads());
      World world{topology.size,
                  topology.nodes,
                  std::string(variants[0]->backend()),
                  variants[0]->library(),
                  topology.hosts,
                  0,
                  gpu == nullptr ? std::string() : gpu->device().name,
                  rank.cores().oversubscribed,
                  std::move(facts)};
      Leader leader(rank, options, observer, std::move(world), variants);
      const Offer offer(observer, leader);
      try {
        leader.run();
      } catch (const std::exception& error) {
        give_up(error.what());  // the peers wait, so this comes first
        std::optional<Error> unwritten;
        if (leader.has_samples()) unwritten = hand_over(leader.result(error.what(), "the session failed"), observer);
        const auto* const known = dynamic_cast<const Error*>(&error);
        if (!unwritten || known == nullptr) throw;
        throw Error(known->code(), fmt::format("{}; not everything that was measured could be written: {}",
                                               error.what(), unwritten->what()));
      }
      result = leader.result({}, {});
      result.crossovers = kept;
      try {
        keep_found(options, *variants[0], result);
      } catch (const Error& error) {
        problem = error;
      }
      if (const std::optional<Error> other = hand_over(result, observer)) problem = other;
    } else {
      rank.follow();
    }
    rank.barrier();
  } catch (const Error& error) {
    // All ranks throw kInvalidArgument and kMismatch at the same time, so no rank needs an abort message for them.
    if (error.code() != Errc::kInvalidArgument && error.code() != Errc::kMismatch) give_up(error.what());
    throw;
  } catch (const std::exception& error) {
    give_up(error.what());
    throw;
  }
  if (problem) throw Error(*problem);
  return result;
}

CollResult run_coll(const CollOptions& options, const CollObserver& observer, GpuBackend* gpus,
                    const ProcessStart& start) {
  switch (world_of(options, start.launch)) {
    case WorldKind::kSolo: {
      std::vector<std::unique_ptr<comm::Communicator>> variants;
      for (std::size_t i = 0; i < options.variants.size(); ++i) variants.push_back(comm::make_solo());
      const GpuRank own = connect(options, variants, gpus, observer.nccl_log);
      return run_coll_rank(options, own.variants, observer, own.gpu.get(), start.environment, own.facts);
    }
    case WorldKind::kThreads: return run_threads(options, observer, gpus, start);
    case WorldKind::kProcesses: break;
  }
  return run_processes(options, observer, gpus, start);
}

}  // namespace hvd::bench::coll
