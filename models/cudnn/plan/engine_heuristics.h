// Asks cuDNN which engines run a group, on a GPU that is present or on a GPU of which only a description is given.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/cudnn/library/descriptor.h"
#include "models/cudnn/library/operation_graph.h"
#include "models/cudnn/plan/plan.h"

namespace hvd::models::cudnn {

/// Modes of cuDNN's heuristics, in the order in which they are asked. Each mode has its own list of engines.
enum class HeuristicsMode : std::uint8_t {
  kA,         ///< cuDNN answers fast; engines are ranked by expected speed
  kB,         ///< cuDNN answers more slowly than for kA, and ranks more accurately; for single operations
  kFallback,  ///< every engine that works, unranked
};

/// Conditions that an engine must meet.
struct EngineFilter {
  ComputeType compute = ComputeType::kFp16;
  bool deterministic = false;
  std::size_t workspace_cap_bytes = 0;
};

EngineFilter filter_of(const PlanOptions& options);

/// Returns the reason why `choice` may not be used, or "" if it may. Pure.
std::string rejection(const EngineChoice& choice, const EngineFilter& filter);

/// Returns the workspace, in bytes, that a finalised engine configuration reports before a plan is built. Without a
/// GPU, this is the only source of the workspace of engines compiled at run time. Returns 0 if this cuDNN does not
/// report the workspace.
std::size_t promised_workspace(const Descriptor& config);

/// One heuristics list of cuDNN for `group`. at() fetches and examines only as many engines as it needs, because each
/// engine takes cuDNN milliseconds and some lists have dozens of engines. `library` and `target` must outlive this
/// object. Only one thread may use it.
class EngineList {
 public:
  /// Does not throw: if cuDNN refuses the group, the list is empty and why() has the reason.
  EngineList(const Library& library, const Target& target, const Program& program, const Group& group,
             HeuristicsMode mode);

  /// Returns the engine at place `i` among those that cuDNN accepts, or null if cuDNN accepts too few. Engines compiled
  /// at run time are not finalised, because compiling takes seconds each. The returned pointer is valid until the next
  /// call.
  const EngineChoice* at(std::size_t i);
  /// cuDNN's reason for the last engine or list that it refused, among those examined so far. May be empty.
  [[nodiscard]] const std::string& why() const noexcept { return why_; }

 private:
  void fetch(std::int64_t most);
  void fetch_whole();
  void look_at_next();

  const Library& library_;
  const Target& target_;
  std::optional<OperationGraph> graph_;  // outlives the members below, which point at it
  std::optional<Descriptor> heuristics_;
  std::vector<Descriptor> configs_;  // the engines fetched so far, from the start of the list
  bool whole_ = false;               // configs_ is the complete list
  std::size_t looked_at_ = 0;
  std::vector<EngineChoice> choices_;
  std::string why_;
};

/// Makes a planner for the GPU of `handle`, called `device`. `handle` must outlive the planner. (cudnn_planner.cpp)
std::unique_ptr<Planner> make_planner(std::shared_ptr<const Library> library, cudnnHandle_t handle,
                                      const std::string& device);

}  // namespace hvd::models::cudnn
