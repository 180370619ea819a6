// Asks cuDNN which engines run a group, on a GPU that is described or on one that is there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/cudnn/descriptor.h"
#include "models/cudnn/operation_graph.h"
#include "models/cudnn/plan.h"
#include "models/cudnn/target.h"

namespace hvd::models::cudnn {

/// cuDNN's lists of engines, in the order in which they are asked for.
enum class Heuristics : std::uint8_t {
  kA,         ///< fast, ranked by expected speed
  kB,         ///< slower and more accurate, for single operations
  kFallback,  ///< what works at all, unranked
};

/// What is wanted of an engine.
struct EngineFilter {
  ComputeType compute = ComputeType::kFp16;
  bool deterministic = false;
  std::size_t workspace_cap_bytes = 0;
};

EngineFilter filter_of(const PlanOptions& options);

/// Why `choice` may not be used; empty: it may. Pure.
std::string rejection(const EngineChoice& choice, const EngineFilter& filter);

/// Bytes of workspace that a finalised engine configuration says it will want, before there is a plan of it: the only
/// way to know without a GPU where an engine is compiled at run time. 0 if this cuDNN does not say.
std::size_t promised_workspace(const Descriptor& config);

/// One list of the heuristics for `group`, made and looked at as far as it is asked for: each engine takes cuDNN
/// milliseconds, and some lists hold dozens. `library` and `target` must outlive it. One thread.
class EngineList {
 public:
  /// Never fails: a refusal is an empty list with a reason.
  EngineList(const Library& library, const Target& target, const Program& program, const Group& group, Heuristics mode);

  /// Number `i` of those that cuDNN accepts; those compiled in advance are finalised (compiling the others takes
  /// seconds each). Null: there are not so many. Valid until the next call.
  const EngineChoice* at(std::size_t i);
  /// What cuDNN said to what it does not accept, as far as the list was looked at; may be empty.
  [[nodiscard]] const std::string& why() const noexcept { return why_; }

 private:
  void fetch(std::int64_t most);
  void fetch_whole();
  void look_at_next();

  const Library& library_;
  const Target& target_;
  std::optional<OperationGraph> graph_;  // outlives what follows
  std::optional<Descriptor> heuristics_;
  std::vector<Descriptor> configs_;  // the first ones of the list
  bool whole_ = false;               // they are all of it
  std::size_t looked_at_ = 0;
  std::vector<EngineChoice> choices_;
  std::string why_;
};

/// For the GPU of `handle`, called `device`. Both outlive it. (planner.cpp)
std::unique_ptr<Planner> make_planner(std::shared_ptr<const Library> library, cudnnHandle_t handle,
                                      const std::string& device);

}  // namespace hvd::models::cudnn
