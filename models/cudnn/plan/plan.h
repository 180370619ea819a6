// A Program with all that is needed to run it on one kind of GPU: an engine and its knobs for each cuDNN group, and a
// place in memory for each value. Plain data, made from a description of the GPU, without a device. The executor
// finalises the chosen engines on the device. The executor may also time the candidates (Plan::engines, cuDNN's best
// guess first), and keeps the winners in a file (winners.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "models/cudnn/lowering/lowering.h"
#include "models/cudnn/lowering/program.h"
#include "models/cudnn/plan/engine_failures.h"
#include "models/cudnn/plan/memory_layout.h"

namespace hvd::models::cudnn {

struct Knob {
  int type = 0;  ///< cudnnBackendKnobType_t
  std::int64_t value = 0;
  bool operator==(const Knob&) const = default;
};

/// An engine of cuDNN with its settings: enough to build the same execution plan again with the same cuDNN version.
struct EngineChoice {
  std::int64_t engine = -1;  ///< cuDNN's "global index"; it identifies an engine only for one operation graph
  std::vector<Knob> knobs = {};
  bool tensor_cores = false;
  bool rounds_inputs = false;    ///< rounds fp32 inputs to fewer bits, as tf32 does
  bool sums_in_16_bits = false;  ///< if true, the engine is never chosen
  bool nondeterministic = false;
  bool compiled_at_run_time = false;  ///< can be finalised only on a machine with a driver
  bool finalised = false;             ///< an execution plan was built from this choice
  std::size_t workspace_bytes = 0;    ///< of the execution plan if `finalised`, else promised_workspace()
  /// For example "62[2=5,13=1]": engine 62, with knob types as numbers of cudnnBackendKnobType_t.
  [[nodiscard]] std::string text() const;
};

/// The engines for all groups of one signature.
struct EngineCandidates {
  std::string signature = {};
  std::vector<EngineChoice> choices = {};  ///< in the order of cuDNN's heuristics
  std::size_t chosen = 0;
  int groups = 0;  ///< number of groups with this signature
};

struct PlanOptions {
  ComputeType compute = ComputeType::kFp16;
  DataType gradient = DataType::kF16;
  FusionOptions fusion = {};
  bool deterministic = false;  ///< use only engines and groups whose sums have a fixed order
  /// One workspace serves all groups. Engines that need more workspace than this are not used.
  std::size_t workspace_cap_bytes = std::size_t{1} << 30;
  std::size_t candidates = 8;  ///< engines to keep per signature, for timing
  EngineFailures failed = {};  ///< engines not to use; a group without other engines falls back (lowering.h)
};

/// Returns options.fusion, which was requested, without the parts that have failed on this machine.
FusionOptions fusion_that_runs(const PlanOptions& options);

/// Returns the options that decide which groups the program has.
LoweringOptions lowering_options(const PlanOptions& options);

/// Returns the reason why no cuDNN engine may run `group`, whatever the engines' notes say, or "" if one may. Pure.
std::string rejection(const Group& group, const PlanOptions& options);

struct Plan {
  PlanOptions options;
  std::string cudnn;          ///< e.g. "9.19.0"
  std::string device;         ///< e.g. "NVIDIA H200"
  std::string cublaslt = {};  ///< e.g. "13.1.0"; empty until cuBLASLt is loaded
  Program program;
  std::vector<EngineCandidates> engines;  ///< one per distinct signature, in order of first use
  std::vector<int> engine_of;             ///< by group: index into `engines`; -1 for groups that are not cuDNN's
  MemoryLayout memory;
  std::size_t workspace_bytes = 0;  ///< the largest workspace of the chosen engines, as far as known
};

/// Returns the first group that uses plan.engines[engine].
const Group& first_group(const Plan& plan, std::size_t engine);

/// Makes a Plan in which only the names of the GPU and of cuDNN are missing. `choices` returns one or more engines for
/// a cuDNN group and is called once per signature.
Plan assemble(const Graph& graph, const PlanOptions& options, Program program,
              const std::function<std::vector<EngineChoice>(const Program&, const Group&)>& choices);

/// One line per fusion that was tried and refused: the nodes, and the library's reason.
std::vector<std::string> fallback_lines(const Graph& graph, const Program& program);

/// Plans graphs for one GPU and remembers cuDNN's answers. Only one thread at a time may use a planner.
class Planner {
 public:
  virtual ~Planner() = default;
  /// Errors: unsupported, naming the node, if the options leave no engine for a convolution.
  virtual Plan plan(const Graph& graph, const PlanOptions& options) = 0;
  /// `asked`: how often cuDNN's heuristics were asked. `known`: how often the answer for an equal group was already
  /// known.
  struct Questions {
    std::size_t asked = 0, known = 0;
  };
  [[nodiscard]] virtual Questions questions() const = 0;
  [[nodiscard]] virtual std::string cudnn_version() const = 0;
};

/// Makes a planner for the GPU that `device_properties` describes, a JSON object in cuDNN's form (tests/cudnn/devices).
/// Errors: unsupported if cuDNN is not in this build, cannot be loaded, or is older than 9.8; invalid_argument for a
/// description that cuDNN refuses.
std::unique_ptr<Planner> make_planner(const std::string& device_properties);

/// Returns the reason why make_planner() cannot work here, or "" if it can.
std::string planner_unsupported_reason();

}  // namespace hvd::models::cudnn
