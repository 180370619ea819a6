#include "bench/session/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <fstream>
#include <utility>

#include "bench/hardware/gpu_facts.h"
#include "bench/hardware/roofline.h"
#include "bench/session/notes.h"
#include "bench/session/rank_kind.h"
#include "bench/session/rank_parts.h"
#include "bench/session/round_plan.h"
#include "bench/session/schedule_trials.h"
#include "bench/session/session_leader.h"
#include "bench/session/session_parts.h"
#include "bench/session/validator.h"
#include "bench/session/work_size.h"
#include "bench/session/worker.h"
#include "bench/store/host_facts.h"
#include "bench/store/provenance.h"
#include "bench/tune/crossovers.h"
#include "bench/world/cores.h"
#include "bench/world/memory.h"
#include "bench/world/numa_facts.h"
#include "bench/world/ranks.h"
#include "bench/world/settings.h"
#include "bench/world/setup.h"
#include "bench/world/training_options.h"
#include "engine/base/deadline.h"
#include "engine/base/error.h"
#include "engine/comm/communicator.h"
#include "models/thread_team.h"

namespace hvd::bench {
namespace {

struct Session {
  Options options;
  const SessionObserver& observer;
  const std::function<void(RunRecord&)>& prepare;
  Setup setup;
  SessionFacts facts;
  ScheduleChoice schedule;  // result of --tune-schedule
  std::string fit;          // result of --fit, as text
  GpuBackend* gpus = nullptr;
  const Environment& environment;
  ProcessFacts process;  // facts of rank 0, or of the only rank of this process
};

void write_replay(const std::string& path, const models::ReplayProfile& profile) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << models::to_text(profile) << std::flush;
  if (!out) throw Error(Errc::kIo, fmt::format("{}: cannot write the replay file: {}", path, std::strerror(errno)));
}

RankCores own_cores(const Session& session) {
  return rank_cores(static_cast<double>(session.process.task_processors) / session.process.ranks_here);
}

std::vector<RankCores> gather_cores(Engine& engine, const RankCores& mine) {
  const std::string text = to_text(mine);
  return parse_all_cores(engine.gather(std::as_bytes(std::span(text))));
}

// Collective. Every rank gets the same thread count, even if ranks are bound to different cores. Errors:
// invalid_argument on all ranks, if OpenMP does not give a rank so many threads.
CoreShare agree_on_cores(Engine& engine, const RankCores& mine, int threads) {
  const std::vector<RankCores> all = gather_cores(engine, mine);
  CoreShare share;
  if (engine.rank() == 0) share = share_cores(all, engine.topology().hosts, threads);
  // The share is sent as a message, because the data plane of GPUs cannot reach host memory.
  const comm::Bytes agreed = engine.broadcast_message(std::as_bytes(std::span(&share, 1)), 0);
  std::memcpy(&share, agreed.data(), sizeof share);
  if (share.thread_limit > 0 && share.threads > share.thread_limit) {
    throw AgreedError(Errc::kInvalidArgument,
                      fmt::format("--threads {}: OpenMP gives a rank {} at most; give --threads {} or fewer, or unset "
                                  "OMP_THREAD_LIMIT and OMP_MAX_ACTIVE_LEVELS",
                                  share.threads, share.thread_limit, share.thread_limit));
  }
  return share;
}

// Collective. Starts the threads that will compute on the CPU, and asks where they run: a launcher, OMP_PROC_BIND or a
// quota may make ranks take turns. Rank 0 adds what it finds to `facts`.
void start_computing(Engine& engine, RankCores mine, int threads, SessionFacts& facts) {
  if (std::vector<int> team = models::start_team(threads).processors; !team.empty()) mine.cpus = std::move(team);
  mine.cores = cores_of(mine.cpus);
  const std::vector<RankCores> all = gather_cores(engine, mine);
  if (engine.rank() != 0) return;
  const std::vector<std::string>& hosts = engine.topology().hosts;
  add_caution(facts.gpus.provenance, "more_threads_than_cores", crowding(all, hosts, threads));
  add_caution(facts.gpus.provenance, "hardware_threads", shared_cores(all, hosts, threads));
  for (std::string note : {narrow_binding(all, hosts), small_grant(all, hosts)}) {
    if (!note.empty()) facts.gpus.notes.push_back(std::move(note));
  }
}

NumaFacts numa_facts(Engine& engine, const Session& session) {
  const NumaKind kind{.threads = session.process.ranks_here > 1, .on_gpus = session.setup.device == Device::kCuda};
  return gather_numa_facts(engine.topology(), kind, session.environment,
                           [&](auto mine) { return engine.gather(mine); });
}

/// Returns the notes on choices that were made before the first step.
std::vector<std::string> opening_notes(const Session& session) {
  std::vector<std::string> notes = session.setup.notes;
  notes.insert(notes.end(), session.facts.gpus.notes.begin(), session.facts.gpus.notes.end());
  return notes;
}

SessionParts parts_of(const Session& session, const RankTrainer& rank, RankGroup& rank_group) {
  return {.options = session.options,
          .setup = session.setup,
          .facts = session.facts,
          .trainer = *rank.trainer,
          .rank_group = rank_group,
          .observer = session.observer,
          .prepare = session.prepare,
          .gpu = rank.gpu};
}

void validate(const Session& session, const RankTrainer& rank, Worker& worker, SessionResult& result) {
  RankGroup rank_group(rank.trainer->engine(), worker);
  Validator validator(parts_of(session, rank, rank_group));
  validator.run();
  result.runs.push_back(validator.take_run());
  result.validation = validator.take_validation();
  result.notes = opening_notes(session);
  for (std::string& caution : caution_lines(result.runs.back().provenance)) result.notes.push_back(std::move(caution));
}

void conduct(const Session& session, const RankTrainer& rank, Worker& worker, SessionResult& result) {
  Engine& engine = rank.trainer->engine();
  RankGroup rank_group(engine, worker);
  SessionLeader leader(parts_of(session, rank, rank_group));
  leader.run();
  std::vector<RunRecord>& runs = result.runs;
  runs = leader.take_runs();
  std::vector<std::string>& notes = result.notes;
  notes = opening_notes(session);
  for (std::string& caution : closing_cautions(runs, leader.findings(), session.facts)) {
    notes.push_back(std::move(caution));
  }
  for (std::string& caution : caution_lines(runs.back().provenance)) notes.push_back(std::move(caution));
  explain(runs, leader.findings(), engine.plan(), session.facts);
  if (rank.gpu != nullptr) explain_gpu(runs.back(), *rank.gpu);
  if (session.observer.save) session.observer.save(runs.back());
  if (!session.options.record_replay_file.empty()) {
    try {
      write_replay(session.options.record_replay_file, leader.recorded());
      notes.push_back("replay profile written to " + session.options.record_replay_file);
    } catch (const Error& error) {
      result.faults.emplace_back(error.what());
    }
  }
  result.operations = time_table(runs.back());
  if (rank.gpu == nullptr) return;
  if (const auto& bound = rank.gpu->bound()) result.operations = bound_table(runs.back(), *bound);
}

// Collective. Rank 0 collects the errors of all ranks, because no rank may fail alone while rank 0 stores and prints.
void close_traces(Engine& engine, SessionResult& result) {
  std::string mine;
  try {
    engine.close_trace();
  } catch (const Error& error) {
    if (error.code() != Errc::kIo) throw;
    mine = error.what();
  }
  std::size_t faults = 0;
  std::string first;
  for (const comm::Bytes& theirs : engine.gather(std::as_bytes(std::span(mine)))) {
    if (!theirs.empty() && faults++ == 0) first = comm::text_of(theirs);
  }
  if (faults > 1) first += fmt::format(", and those of {} more ranks", faults - 1);
  if (faults > 0) result.faults.push_back(std::move(first));
}

// Waits until every peer knows why the session ends. If this rank left earlier, a peer could miss the reason.
void wait_for_the_others(Engine& engine) noexcept {
  try {
    engine.barrier();
  } catch (const std::exception&) {
    // A peer left first, so that peer knows the reason already.
  }
}

/// Runs `body`, which uses `engine`. If it throws, sends the reason to the peers at once.
template <class Body>
void with_peers_told(const Session& session, Engine& engine, Body&& body) {
  try {
    body();
  } catch (const AgreedError&) {
    wait_for_the_others(engine);
    if (session.observer.leaving) session.observer.leaving();
    throw;
  } catch (const std::exception& error) {
    engine.abort(error.what());
    if (std::string table = engine.flight_record(); !table.empty() && session.observer.flight_record) {
      session.observer.flight_record(std::move(table));
    }
    if (session.observer.leaving) session.observer.leaving();
    throw;
  }
}

RankEndings endings(const Session& session) {
  return {session.observer.leaving, {.leave = session.observer.stuck, .patience = session.observer.stuck_patience}};
}

void tell_building(const Session& session, Engine& engine) {
  if (engine.rank() != 0 || !session.observer.progress) return;
  session.observer.progress({"building", std::string(name(session.setup.main_phase())), 0, 0, 0, -1});
}

// Returns the run's setup for a trial before the run. A trial does not time cuDNN's engines.
Setup setup_of_trial(const Session& session) {
  Setup setup = session.setup;
  setup.gpu.tune = false;
  return setup;
}

// Makes the world in which a trial runs. It has the deadline of start-up and writes no timeline. Borrows `setup`.
RankParts parts_of_trial(const Session& session, const Setup& setup,
                         const std::shared_ptr<comm::Communicator>& communicator) {
  EngineOptions options = session.options.engine;
  options.deadline = session.options.startup_deadline;
  options.timeline_filename.clear();
  options.warn = session.observer.warn;
  options.schedule = setup.schedule;
  return {setup, options, session.options.comm_options, session.gpus, communicator, endings(session)};
}

// Tries schedules in a world of their own, which is destroyed before the run's world is built. The run then behaves as
// if the command line had contained the chosen settings. This function does not time cuDNN's engines (--tune), but it
// uses the engines that --tuning-folder keeps.
void choose_schedule(Session& session, const std::shared_ptr<comm::Communicator>& communicator) {
  const Setup setup = setup_of_trial(session);
  RankParts parts = parts_of_trial(session, setup, communicator);
  Engine& engine = parts.engine();
  const bool uncapturable = session.options.gpu.schedule.graph && !parts.graphs();
  with_peers_told(session, engine, [&] {
    const std::string& folder = setup.gpu.tuning_folder;
    const int threads =
        parts.on_gpu() ? 1 : agree_on_cores(engine, own_cores(session), session.options.threads).threads;
    const ScheduleCase conditions = schedule_case(setup, engine.topology(), engine.library(), parts.device(threads),
                                                  parts.setting(), parts.knobs());
    if (std::optional<ScheduleChoice> kept = recall_schedule(engine, folder, conditions)) {
      session.schedule = *std::move(kept);
      engine.barrier();
      return;
    }
    tell_building(session, engine);
    engine.set_activity("building the network to try schedules with", 0);
    const std::unique_ptr<Trainer> trainer = parts.make_trainer(threads).trainer;
    trainer->start();
    session.schedule = try_schedules(parts, *trainer, session.observer.progress, session.process.stop_requested);
    if (engine.rank() == 0) remember_schedule(folder, conditions, session.schedule);
    engine.barrier();
  });
  put(session.schedule.setting, session.options.engine, session.options.gpu, session.options.comm_options);
  communicator->data().choose(session.options.comm_options);
  if (uncapturable) session.options.gpu.schedule.graph = true;  // so that the run reports why it has no graph
  session.setup.gpu = session.options.gpu;
  session.setup.fusion_threshold_bytes = session.options.engine.negotiation.fusion.threshold_bytes;
}

// Times a step of the session's work in a world of its own, which is destroyed before the run's world is built.
WorkTrial try_work_apart(const Session& session, const std::shared_ptr<comm::Communicator>& communicator,
                         const ShortestSession& shortest) {
  const Setup setup = setup_of_trial(session);
  RankParts parts = parts_of_trial(session, setup, communicator);
  Engine& engine = parts.engine();
  WorkTrial trial;
  with_peers_told(session, engine, [&] {
    const int threads =
        parts.on_gpu() ? 1 : agree_on_cores(engine, own_cores(session), session.options.threads).threads;
    tell_building(session, engine);
    engine.set_activity("timing the first steps (--fit)", 0);
    const std::unique_ptr<Trainer> trainer = parts.make_trainer(threads).trainer;
    trainer->start();
    trial = try_work(*trainer, setup, shortest, std::chrono::duration<double>(session.options.max_time).count(),
                     session.process.stop_requested);
    engine.barrier();
  });
  return trial;
}

// Lowers batch and image size until twelve rounds fit. The run then behaves as if the command line had contained the
// chosen sizes. Each proposal is computed from the time of a larger step, so it is timed before it is taken.
void choose_size(Session& session, const std::shared_ptr<comm::Communicator>& communicator) {
  Setup& setup = session.setup;
  const ShortestSession shortest =
      RoundPlan(setup.device == Device::kCuda, std::nullopt, setup.seed, session.options.num_batches_per_iter)
          .shortest_session(session.options.num_warmup_batches);
  const WorkSize asked = work_of(setup);
  std::optional<double> asked_seconds;  // of a step
  for (;;) {
    const WorkTrial trial = try_work_apart(session, communicator, shortest);
    if (!asked_seconds) asked_seconds = trial.step_seconds;
    if (trial.fits == work_of(setup) || trial.cancelled) break;
    take_work(trial.fits, setup);
  }
  reset_peak_resident_set();  // the peak that the run stores must not be that of a larger batch
  session.fit = fit_line(setup, asked, *asked_seconds);
}

// Collective: uses the thresholds that `hvd_bench coll --find-crossovers` kept for a world like this one.
void recall_crossovers(Session& session, comm::Communicator& communicator) {
  const std::optional<comm::Thresholds> kept =
      kept_crossovers(communicator, session.options.gpu.tuning_folder, session.options.startup_deadline.from_now());
  if (!kept) return;
  session.options.comm_options.thresholds = *kept;
  communicator.data().choose(session.options.comm_options);
  session.facts.gpus.notes.push_back("between hosts, as kept in --tuning-folder: " + crossover_text(*kept));
}

// Runs one rank from start to end. Rank 0 fills `result`.
void run_rank(Session session, std::shared_ptr<comm::Communicator> communicator, SessionResult& result) {
  if (session.setup.device != Device::kCuda) recall_crossovers(session, *communicator);
  if (session.options.fit) choose_size(session, communicator);
  if (session.setup.tuning.on) choose_schedule(session, communicator);
  EngineOptions engine_options = session.options.engine;
  engine_options.schedule = session.setup.schedule;
  engine_options.warn = session.observer.warn;
  engine_options.deadline = session.options.startup_deadline;  // until Trainer::end_startup()
  RankParts parts(session.setup, engine_options, session.options.comm_options, session.gpus, std::move(communicator),
                  endings(session));
  Engine& engine = parts.engine();
  with_peers_told(session, engine, [&] {
    if (!session.fit.empty() && engine.rank() == 0 && session.observer.tell) {
      session.observer.tell("  fit        " + session.fit);
    }
    if (session.options.validate && engine.size() == 1) {
      throw Error(Errc::kInvalidArgument,
                  "validate compares ranks, and there is one; start several: mpirun -n 4, srun, or --ranks 4");
    }
    RankCores cores = own_cores(session);
    if (parts.on_gpu()) cores.thread_limit = 0;  // OpenMP computes nothing there
    const CoreShare share = agree_on_cores(engine, cores, session.options.threads);
    if (!parts.on_gpu() && !session.setup.replay) start_computing(engine, cores, share.threads, session.facts);
    NumaFacts numa = numa_facts(engine, session);
    session.facts.threads = parts.on_gpu() ? 1 : share.threads;
    session.facts.spare_core = parts.on_gpu() || share.spare_core;
    session.facts.ranks_at_once = parts.on_gpu() ? engine.size() : share.ranks_at_once;
    if (parts.on_gpu() && engine.size() > 1) session.facts.comm = "nccl";
    session.facts.traced = engine.tracing() || session.setup.profile;
    tell_building(session, engine);
    engine.set_activity("building the network", 0);
    const RankTrainer rank = parts.make_trainer(share.threads);
    Trainer& trainer = *rank.trainer;
    trainer.start();
    GpuDescription gpu;  // empty on a CPU
    if (rank.gpu != nullptr) {
      gpu = parts.gpu(rank.gpu->engines(), session.observer.nccl_log ? session.observer.nccl_log() : std::string());
      session.facts.gpus = gather_gpu_facts(gpu, [&](auto mine) { return engine.gather(mine); });
      add_caution(session.facts.gpus.provenance, "few_cpus", few_cpus(share, engine.topology().hosts));
    }
    session.facts.graphs = parts.graphs();
    session.facts.gpus.provenance.merge(session.schedule.provenance);
    if (!session.fit.empty()) session.facts.gpus.provenance["measurement.fit"] = {session.fit, false};
    session.facts.gpus.provenance.merge(numa.provenance);
    for (const auto* notes :
         {&parts.notes(), &std::as_const(session.schedule.notes), &trainer.facts().notes, &std::as_const(numa.notes)}) {
      session.facts.gpus.notes.insert(session.facts.gpus.notes.end(), notes->begin(), notes->end());
    }
    if (session.options.validate || (engine.size() > 1 && session.process.ranks_here == 1)) {
      session.facts.kinds = gather_kinds(engine, kind_of_rank(trainer.train_step(), gpu));
      add_caution(session.facts.gpus.provenance, "unlike_ranks",
                  unlike_ranks(session.facts.kinds, engine.topology().hosts));
    }
    Worker worker(trainer, rank.gpu, session.process, session.setup.seed);
    if (engine.rank() == 0) {
      session.options.validate ? validate(session, rank, worker, result) : conduct(session, rank, worker, result);
    } else {
      worker.follow();
    }
    engine.barrier();
    close_traces(engine, result);
    if (session.observer.leaving) session.observer.leaving();
  });
}

void run_threads(const Session& session, std::vector<std::unique_ptr<comm::Communicator>> ranks,
                 SessionResult& result) {
  const auto body = [&](int rank) {
    Session own = session;
    SessionResult nothing;
    if (rank > 0) own.process.stop_requested = nullptr;  // rank 0 checks for stop requests for the whole process
    run_rank(std::move(own), std::move(ranks[static_cast<std::size_t>(rank)]), rank == 0 ? result : nothing);
  };
  run_rank_threads(static_cast<int>(ranks.size()), body,
                   [&](const std::string& reason) { ranks[0]->control().abort(reason); });
}

}  // namespace

SessionResult run_session(const Options& options, const SessionObserver& observer,
                          const std::function<void(RunRecord&)>& prepare, GpuBackend* gpus, const ProcessStart& start) {
  Session session{options, observer, prepare, settle(options, gpus), {}, {}, {}, gpus, start.environment, {}};
  session.process.stop_requested = observer.stop_requested;
  session.process.task_processors = task_processors(start);
  SessionResult result;
  session.options.comm_options.wire = session.setup.wire();
  const comm::CommOptions& comm_options = session.options.comm_options;
  const Launch& launch = start.launch;
  switch (world_of(options, launch)) {
    case WorldKind::kSolo: {
      session.facts.comm = "solo";
      session.process.baseline_bytes = resident_set().now;
      run_rank(session, comm::make_solo(), result);
      break;
    }
    case WorldKind::kThreads: {
      session.facts.comm = "loopback";
      auto ranks = comm::make_loopback(std::max(1, options.ranks), comm_options);
      session.process.ranks_here = static_cast<int>(ranks.size());
      session.process.baseline_bytes = resident_set().now;
      run_threads(session, std::move(ranks), result);
      break;
    }
    case WorldKind::kProcesses: {
      session.facts.comm = "mpi";
      auto rank = comm::make_mpi(comm_options);
      if (observer.joined) observer.joined();
      try {
        check_world(launch, rank->topology().size, options, rank->library());
        require_no_objection(*rank, rank_objection(launch, rank->topology().rank), options.startup_deadline.from_now());
        require_equal_settings(*rank, settings_of(options, session.setup), options.startup_deadline.from_now());
      } catch (const std::exception&) {
        if (observer.leaving) observer.leaving();
        throw;
      }
      if (observer.met) observer.met(rank->neighbours());
      result.is_root = rank->topology().rank == 0;
      session.process.peers_are_processes = true;
      session.process.baseline_bytes = resident_set().now;
      run_rank(session, std::move(rank), result);
      break;
    }
  }
  return result;
}

}  // namespace hvd::bench
