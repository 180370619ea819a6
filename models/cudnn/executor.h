// A DeviceStep from a plan: memory, launches, and what a training loop calls. make_cudnn_step() (cudnn_step.h) plans
// for the GPU that is there; tests plan as they like, with libraries and a GpuRuntime of their own.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "models/cudnn/cudnn_step.h"
#include "models/cudnn/engine_room.h"
#include "models/cudnn/plan.h"

namespace hvd::models::cudnn {

struct ExecutorOptions {
  std::uint64_t seed = 1;
  bool profile = false;
  double loss_scale = 0;           ///< as CudnnOptions; matters in fp16 alone
  double gradient_prescale = 1.0;  ///< as StepOptions
  bool tune = false;
  std::string winners_folder = {};
  AgreeOnWinners agree = {};
  ShareWithRanks share = {};
};

struct Planning {
  /// The first is used, unless others are timed, or were, and one of them is faster. At least one.
  std::vector<Fusion> fusions = {};
  /// Plans `graph` without the engines that have failed. Called until all that it plans runs. Errors: those of
  /// Planner::plan().
  std::function<Plan(const Graph& graph, const Fusion& fusion, const EngineFailures& failed)> plan = {};
};

/// `room` was made for `runtime`. Errors: as make_cudnn_step().
std::unique_ptr<DeviceStep> make_executor(Graph graph, const Planning& planning, const ExecutorOptions& options,
                                          gpu::GpuRuntime& runtime, const Backends& backends,
                                          std::shared_ptr<EngineRoom> room, const ArenaAllocator& allocate);

/// Why a GPU of this compute capability cannot train in `type`; empty: it can. `kernels_from`: the oldest generation
/// that our kernels were compiled for, 10 * major + minor. Pure.
std::string type_refusal(const gpu::Device& device, ComputeType type, int kernels_from);

}  // namespace hvd::models::cudnn
