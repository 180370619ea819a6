// Application runs the program after main() has read the environment and found out how the process was launched. It
// builds the parts from the command line, runs the session, and prints and stores the results. Everything that ends the
// process before the session is over is in process_end.h. Threads: main()'s thread makes all calls.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/cli/coll/output.h"
#include "bench/cli/command_line.h"
#include "bench/cli/console.h"
#include "bench/cli/nccl_log.h"
#include "bench/cli/process_end.h"
#include "bench/cli/record_keeper.h"
#include "bench/coll/options.h"
#include "bench/session/session.h"
#include "bench/store/process_start.h"
#include "bench/store/run_record.h"
#include "bench/world/gpu_backend.h"
#include "engine/base/error.h"

namespace hvd::bench {

class Application {
 public:
  Application(std::vector<std::string> argv, ProcessStart start);

  /// Does what the command line asks and returns the exit code. Errors: any Errc.
  int run();
  /// Reports the error, stores the results measured so far, and returns the exit code.
  int fail(const Error& error) { return end_.fail(error, console_.get()); }

 private:
  void join(WorldOptions& options);
  int train(Options options);
  int coll(coll::CollOptions options);
  void keep_store_problem(const std::function<void()>& open);
  void open_store(const Options& options);
  template <class Observer>
  void observe_ranks(Observer& observer);
  SessionObserver observer(const Options& options);
  void announce(const Options& options, const std::string& text);
  void prepare(const Options& options, RunRecord& run);
  int close(const Options& options, const SessionResult& result);

  const std::vector<std::string> argv_;
  const ProcessStart start_;
  const Launch& launch_ = start_.launch;
  const std::unique_ptr<GpuBackend> gpus_;
  std::string session_uuid_;
  Provenance provenance_;
  std::exception_ptr store_problem_;  // why an output cannot be written; thrown when rank 0 can tell the other ranks
  bool world_announced_ = false;
  std::optional<NcclLog> nccl_log_;
  std::unique_ptr<Console> console_;
  std::unique_ptr<RecordKeeper> keeper_;
  CollKeeper coll_keeper_;
  ProcessEnd end_;  // destroyed first, because its threads use the keepers
};

}  // namespace hvd::bench
