// Asks cuDNN which engines run a group, on a GPU that is described or on one that is there.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "models/cudnn/descriptor.h"
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

class EngineFinder {
 public:
  EngineFinder(std::shared_ptr<const Library> library, Target target)
      : library_(std::move(library)), target_(std::move(target)) {}

  struct List {
    /// That cuDNN accepts; those compiled in advance are finalised. Compiling the others takes seconds each.
    std::vector<EngineChoice> choices;
    std::string why;  ///< what cuDNN said to what it does not accept; may be empty
  };
  /// One list of the heuristics for `group`. Never fails: a refusal is an empty list with a reason.
  [[nodiscard]] List list(const Program& program, const Group& group, Heuristics mode) const;

  [[nodiscard]] const Library& library() const noexcept { return *library_; }

 private:
  std::shared_ptr<const Library> library_;
  Target target_;
};

/// For the GPU of `handle`, called `device`. Both outlive it. (planner.cpp)
std::unique_ptr<Planner> make_planner(std::shared_ptr<const Library> library, cudnnHandle_t handle,
                                      const std::string& device);

}  // namespace hvd::models::cudnn
