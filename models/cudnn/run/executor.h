// The DeviceStep that executes a plan and owns the plan's memory and launches. make_cudnn_step() (cudnn_step.h) calls
// make_executor() with plans for the present GPU. Tests call make_executor() with their own plans, libraries and
// GpuRuntime.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "models/cudnn/plan/plan.h"
#include "models/cudnn/run/cudnn_step.h"
#include "models/cudnn/run/group_launcher.h"

namespace hvd::models::cudnn {

struct ExecutorOptions {
  std::uint64_t seed = 1;
  bool profile = false;
  double loss_scale = 0;           ///< see CudnnOptions; used in fp16 only
  double gradient_prescale = 1.0;  ///< see StepOptions
  bool tune = false;
  std::string winners_folder = {};
  ExchangeTexts exchange = {};
  int rank = 0;
};

/// Where the executor gets its plans from: the fusions to choose from, and a function that plans with one of them.
struct PlanSource {
  /// At least one fusion. The step uses the first fusion, unless another fusion was faster in this run or in an earlier
  /// run.
  std::vector<FusionOptions> fusions = {};
  /// Plans `graph` without the engines in `failed`. The function is called again, with more engines in `failed`, until
  /// all groups of the plan run. Errors: those of Planner::plan().
  std::function<Plan(const Graph& graph, const FusionOptions& fusion, const EngineFailures& failed)> plan = {};
};

/// `launcher` must have been made for `runtime`. Errors: those of make_cudnn_step().
std::unique_ptr<DeviceStep> make_executor(Graph graph, const PlanSource& plan_source, const ExecutorOptions& options,
                                          gpu::GpuRuntime& runtime, const Backends& backends,
                                          std::shared_ptr<GroupLauncher> launcher, const ArenaAllocator& allocate);

/// Returns the reason why `device` cannot train in `type`, or "" if it can. `kernels_from`: the oldest compute
/// capability that our kernels were compiled for, 10 * major + minor. Pure.
std::string type_refusal(const gpu::Device& device, ComputeType type, int kernels_from);

}  // namespace hvd::models::cudnn
