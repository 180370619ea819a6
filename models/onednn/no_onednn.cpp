// Replaces the oneDNN backend in builds without the library.
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "models/thread_team.h"
#include "models/train_step.h"

namespace hvd::models {

std::string onednn_unsupported_reason(DataType /*compute*/) {
  return "this build has no oneDNN: install it (Debian: apt-get install libdnnl-dev), then configure and build again";
}

std::string onednn_slow_reason(DataType /*compute*/) { return {}; }

std::string onednn_version_reason() { return {}; }

std::string onednn_reference_code(const Graph& /*graph*/, DataType /*compute*/, int /*threads*/) { return {}; }

std::unique_ptr<TrainStep> make_onednn_step(Graph /*graph*/, const StepOptions& options,
                                            const ArenaAllocator& /*allocate*/) {
  throw Error(Errc::kUnsupported, onednn_unsupported_reason(options.compute));
}

int thread_limit() { return std::numeric_limits<int>::max(); }

std::vector<int> bound_processors() { return {}; }

ThreadTeam start_team(int wanted) { return {.threads = wanted, .processors = {}}; }

}  // namespace hvd::models
