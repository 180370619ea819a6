// A Program with what it takes to run it on one kind of GPU: for each group of cuDNN's an engine and its knobs, for
// each value a place in memory. Plain data, made without a device: from a description of the GPU. Whoever executes it
// finalises the chosen engines on the device, may time the candidates (Plan::engines, best guess first), and keeps the
// winners in a file (plan_cache.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "models/cudnn/analyse.h"
#include "models/cudnn/engine_failures.h"
#include "models/cudnn/memory_layout.h"
#include "models/cudnn/program.h"

namespace hvd::models::cudnn {

struct Knob {
  int type = 0;  ///< cudnnBackendKnobType_t
  std::int64_t value = 0;
  bool operator==(const Knob&) const = default;
};

/// An engine of cuDNN with its settings: enough to build the same plan again with the same version of cuDNN.
struct EngineChoice {
  std::int64_t engine = -1;  ///< global index, per operation graph
  std::vector<Knob> knobs = {};
  bool tensor_cores = false;
  bool rounds_inputs = false;    ///< fp32 inputs to fewer bits: tf32 and the like
  bool sums_in_16_bits = false;  ///< never chosen
  bool nondeterministic = false;
  bool compiled_at_run_time = false;  ///< finalised on a machine with a driver only
  bool finalised = false;             ///< a plan was built from it
  std::size_t workspace_bytes = 0;    ///< of that plan; as promised (engines.h) if there is none yet
  /// "62[2=5,13=1]": knob types by their numbers in cudnnBackendKnobType_t.
  [[nodiscard]] std::string text() const;
};

/// The answer for all groups of one signature.
struct EnginePlan {
  std::string signature = {};
  std::vector<EngineChoice> choices = {};  ///< in the order of cuDNN's heuristics
  std::size_t chosen = 0;
  int groups = 0;  ///< that have this signature
};

struct PlanOptions {
  ComputeType compute = ComputeType::kFp16;
  DataType gradient = DataType::kF16;
  Fusion fusion = {};
  bool deterministic = false;  ///< only engines, and groups, whose sums have a fixed order
  /// One workspace serves all groups; engines that want more are passed over.
  std::size_t workspace_cap_bytes = std::size_t{1} << 30;
  std::size_t candidates = 8;  ///< engines to keep per signature, for timing
  EngineFailures failed = {};  ///< what is not to be used again; a group that has no other engine falls back
};

/// As far as it is known to run: options.fusion is what was asked for.
Fusion fusion_that_runs(const PlanOptions& options);

/// Those of them that say which groups there are.
AnalysisOptions analysis_options(const PlanOptions& options);

/// Why no engine of cuDNN's may run `group`, whatever its notes say; empty: one may. Pure.
std::string rejection(const Group& group, const PlanOptions& options);

struct Plan {
  PlanOptions options;
  std::string cudnn;          ///< "9.19.0"
  std::string device;         ///< "NVIDIA H200"
  std::string cublaslt = {};  ///< "13.1.0"; empty until there is one
  Program program;
  std::vector<EnginePlan> engines;  ///< one per distinct signature, in order of first use
  std::vector<int> engine_of;       ///< by group: index into `engines`; -1 for groups that are not cuDNN's
  MemoryLayout memory;
  std::size_t workspace_bytes = 0;  ///< the largest of the chosen ones, as far as they are known

  /// Of all that decides the numbers: equal plans on all ranks have equal hashes.
  [[nodiscard]] std::uint64_t hash() const;
};

/// The first group of signature `engine`.
const Group& first_group(const Plan& plan, std::size_t engine);

/// A Plan without the names of the GPU and of cuDNN. `choices` gives one engine or more for a group of cuDNN's; it is
/// asked once per signature.
Plan assemble(const Graph& graph, const PlanOptions& options, Program program,
              const std::function<std::vector<EngineChoice>(const Program&, const Group&)>& choices);

/// A line per fusion that was wished for and not to be had: at which nodes, and the library's reason.
std::vector<std::string> fallback_lines(const Graph& graph, const Program& program);
/// A line per kind of group (operations, how many, distinct shapes, engines) and per kind of fallback: for people.
std::string table(const Graph& graph, const Plan& plan);

/// Plans graphs for one GPU and remembers cuDNN's answers. One thread at a time.
class Planner {
 public:
  virtual ~Planner() = default;
  /// Errors: unsupported, naming the node, for a convolution that no engine runs within the options.
  virtual Plan plan(const Graph& graph, const PlanOptions& options) = 0;
  /// How often cuDNN's heuristics were asked, and how often the answer was known from an equal group.
  struct Questions {
    std::size_t asked = 0, known = 0;
  };
  [[nodiscard]] virtual Questions questions() const = 0;
  [[nodiscard]] virtual std::string cudnn_version() const = 0;
};

/// For the GPU that `device_properties` describes, as cuDNN writes them (a JSON object; tests/cudnn/devices).
/// Errors: unsupported if cuDNN is not in this build, cannot be loaded, or is older than 9.8; invalid_argument for a
/// description that cuDNN does not take.
std::unique_ptr<Planner> make_planner(const std::string& device_properties);

/// Why make_planner() cannot work here; empty: it can.
std::string planner_unsupported_reason();

}  // namespace hvd::models::cudnn
