#include "bench/cli/application.h"

#include <unistd.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "bench/cli/coll/output.h"
#include "bench/cli/doctor/doctor.h"
#include "bench/cli/preflight.h"
#include "bench/cli/report.h"
#include "bench/store/provenance.h"
#include "bench/store/result_store.h"
#include "bench/world/ranks.h"
#include "engine/base/vector_level.h"
#include "engine/comm/mpi_library.h"

namespace hvd::bench {

Application::Application(std::vector<std::string> argv, ProcessStart start)
    : argv_(std::move(argv)), start_(std::move(start)), gpus_(make_cuda_backend(start_.environment)), end_(launch_) {}

int Application::run() {
  CommandLine line = parse_command_line(argv_, start_.environment);
  // A wrong value must be one line of text here, and not an error where a kernel first asks for the level.
  if (line.command != Command::kPrint) highest_level(available_levels(), value_of(start_.environment, kMaxCpuIsa));
  switch (line.command) {
    case Command::kPrint: {
      if (launch_.rank != 0) return 0;
      Console(Console::Settings{}).answer(line.text);
      return 0;
    }
    case Command::kDoctor: {
      std::ostringstream text;
      const int code = print_findings(examine(line.options.db_file, start_), launch_, text);
      Console(Console::Settings{}).answer(text.str());
      return code;
    }
    case Command::kStored: {
      std::ostringstream text;
      const int code = print_stored_labels(stored_labels(line.label, line.files), text);
      Console(Console::Settings{}).answer(text.str());
      return code;
    }
    case Command::kSimulate: {
      if (launch_.rank == 0) Console(Console::Settings{}).print(simulate(line.simulate));
      return 0;
    }
    case Command::kAnalyse: {  // on any rank, because hvdb.torch_efficiency starts it on rank 0 of its own world
      const Analysed analysed = analyse(line.analyse, argv_, start_);
      if (!analysed.warning.empty()) say_warning(analysed.warning);
      if (!analysed.problem.empty()) say_error(analysed.problem);
      Console(Console::Settings{}).print(analysed.text);
      return analysed.problem.empty() ? 0 : exit_code(Errc::kIo);
    }
    case Command::kColl: return coll(std::move(line.coll.options));
    case Command::kTrain: break;
  }
  return train(std::move(line.options));
}

/// Settles `options.comm`, and loads MPI if the ranks are processes. Only then are signals watched, because a library
/// may start threads and install handlers when it is loaded.
void Application::join(WorldOptions& options) {
  check_launch(launch_, options, comm::mpi_available());
  end_.set_stage(ErrorStage::kHost);
  if (world_of(options, launch_) == WorldKind::kProcesses) comm::load_mpi(mpi_choice(start_));
  end_.watch_signals();
}

int Application::train(Options options) {
  join(options);
  console_ = std::make_unique<Console>(Console::Settings{options.quiet, ::isatty(STDERR_FILENO) == 1, options.json});
  const Setup setup = check_model(options, gpus_.get());
  if (launch_.rank == 0) open_store(options);
  if (launch_.rank == 0) announce(options, plan_text(options, setup, keeper_->partial()));
  end_.set_stage(ErrorStage::kSession);
  if (setup.device == Device::kCuda && (launch_.size > 1 || options.ranks > 1)) nccl_log_.emplace(start_.environment);
  end_.watch_world(options, options.engine.deadline);
  const SessionResult result = run_session(
      options, observer(options), [&](RunRecord& run) { prepare(options, run); }, gpus_.get(), start_);
  end_.left_world();
  if (!result.is_root) return 0;
  return close(options, result);
}

int Application::coll(coll::CollOptions options) {
  join(options);
  console_ = std::make_unique<Console>(Console::Settings{});
  end_.set_keeper(&coll_keeper_);
  std::unique_ptr<CollStore> store;
  if (launch_.rank == 0) {
    keep_store_problem([&] {
      check_coll_outputs(options);
      const std::string& file = options.db_file;
      if (file.empty()) return;
      store = std::make_unique<CollStore>(file, argv_, start_);
      if (!store->note().empty()) say_warning(store->note());
    });
  }
  end_.set_stage(ErrorStage::kSession);
  if (options.gpus && (launch_.size > 1 || options.ranks > 1)) nccl_log_.emplace(start_.environment);
  end_.watch_world(options, options.deadline);
  coll_keeper_.open({options, argv_, start_.environment, *console_, store.get()});
  coll::CollObserver observer;
  observe_ranks(observer);
  observer.narrate = [this](const std::string& line) { console_->narrate(line); };
  observer.check_outputs = [this] {
    if (store_problem_) std::rethrow_exception(store_problem_);
  };
  coll_keeper_.observe(observer);
  const coll::CollResult result = coll::run_coll(options, observer, gpus_.get(), start_);
  end_.left_world();
  return result.exit_code();
}

/// Calls `open`, which checks the outputs and opens the store. Throws its error now if there is no other rank, or if
/// mpirun ends the other ranks. Under other launchers the other ranks would wait for this rank while MPI starts, so
/// store_problem_ keeps the error, and the session tells the other ranks of it later.
void Application::keep_store_problem(const std::function<void()>& open) {
  try {
    open();
  } catch (const Error&) {
    if (launch_.size == 1 || launch_.launcher == Launcher::kMpirun) throw;
    store_problem_ = std::current_exception();
  }
}

void Application::open_store(const Options& options) {
  session_uuid_ = new_uuid();
  provenance_ = collect_provenance(argv_, start_);
  std::unique_ptr<ResultStore> store;
  keep_store_problem([&] {
    check_outputs(options, std::max(launch_.size, options.ranks));
    if (!options.db_file.empty()) {
      store = std::make_unique<ResultStore>(options.db_file, session_uuid_, quoted_command_line(argv_, start_));
      if (!store->note().empty()) say_warning(store->note());
    }
  });
  keeper_ = std::make_unique<RecordKeeper>(std::move(store), [this](std::string_view text) { console_->warn(text); });
  end_.set_keeper(keeper_.get());
}

/// Sets the callbacks that sessions of training and of `coll` have in common.
template <class Observer>
void Application::observe_ranks(Observer& observer) {
  observer.stop_requested = [this] { return end_.signal(); };
  if (nccl_log_) observer.nccl_log = [this] { return nccl_log_->text(); };
  if (launch_.size == 1) return;
  observer.joined = [this] { end_.joined(); };
  observer.met = [this](std::vector<comm::Neighbour> neighbours) { end_.met(std::move(neighbours)); };
  observer.leaving = [this] { end_.leaving(); };
}

SessionObserver Application::observer(const Options& options) {
  SessionObserver observer;
  observe_ranks(observer);
  observer.stuck = [this](const Error& error) { end_.end_stuck(error); };
  observer.warn = [](std::string_view line) { say_warning(line); };
  observer.flight_record = [this](std::string table) { end_.flight_record(std::move(table)); };
  if (launch_.rank != 0) return observer;
  observer.progress = [this](const Progress& progress) {
    // Throw store_problem_ only after the stage "building". From then on the other ranks follow rank 0's directives,
    // and they end with rank 0's exit code.
    if (store_problem_ && progress.stage != "building") std::rethrow_exception(store_problem_);
    console_->show(progress);
  };
  observer.tell = [this, &options](const std::string& line) { announce(options, line + "\n"); };
  observer.save = [this, &options](const RunRecord& run) {
    // Announce only the session's main phase, because a baseline phase uses no transport and may run on a single rank.
    const bool main = !options.efficiency || run.phase == Phase::kFull;
    if (main && !std::exchange(world_announced_, true)) announce(options, world_text(options, run));
    keeper_->save(run);
  };
  return observer;
}

void Application::announce(const Options& options, const std::string& text) {
  if (options.quiet) return;
  options.json ? console_->narrate(text) : console_->print(text);
}

void Application::prepare(const Options& options, RunRecord& run) {
  if (store_problem_) std::rethrow_exception(store_problem_);
  check_world(launch_, run.allocation_size, options);
  run.uuid = new_uuid();
  run.session_uuid = session_uuid_;
  run.provenance.insert(provenance_.begin(), provenance_.end());
}

int Application::close(const Options& options, const SessionResult& result) {
  end_.begin_report();
  StoredIn stored{keeper_->file(), {}};
  int code = 0;
  try {
    keeper_->finish();
  } catch (const Error& error) {
    stored.problem = error.what();
    code = exit_code(error.code());
  }
  if (!stored.problem.empty()) say_error(stored.problem);
  for (const std::string& fault : result.faults) {
    say_error(fault + "; all was measured");
    if (code == 0) code = exit_code(Errc::kIo);
  }
  if (code == 0 && result.validation) code = result.validation->exit_code();
  const RunRecord* run = headline(result);
  std::string text;
  if (options.json) {
    text = json_report(result, stored);
  } else if (!options.quiet) {
    text = closing_text(result, stored, options.verbose);
  }
  if (run != nullptr && run->images_per_second) {
    const std::string total = total_line(*run) + "\n";
    options.json ? console_->narrate(total) : static_cast<void>(text += total);
  }
  try {
    console_->print(text);
  } catch (const Error& error) {
    throw Error(error.code(),
                std::string(error.what()) + (stored.file.empty()      ? "; the results are lost (--no-db)"
                                             : stored.problem.empty() ? "; the results are in " + stored.file
                                                                      : ""));
  }
  return code;
}

}  // namespace hvd::bench
