// Training steps on an NVIDIA GPU: a Plan (plan.h) executed on a gpu::GpuRuntime. make_cudnn_step() plans for the
// present GPU, allocates memory, finalises engines and binds addresses. Each step then only enqueues.
//
// Numbers that change from step to step live in device memory (kernels/kernels.h: StepScalars, LossScale), so that a
// captured step can be launched again and again.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/gpu/shared_library.h"
#include "models/cudnn/analyse.h"
#include "models/device_step.h"
#include "models/graph/graph.h"

namespace hvd::models {

/// Collective. Takes the text of this rank's fastest engines or fusion. Returns one rank's text, which all ranks use.
/// Every rank calls it equally often. An error that it throws ends make_cudnn_step().
using AgreeOnWinners = std::function<std::string(const std::string& mine)>;

/// Collective, like AgreeOnWinners. Takes this rank's text and returns the texts of all ranks, by rank.
using ShareWithRanks = std::function<std::vector<std::string>(const std::string& mine)>;

struct CudnnOptions {
  bool tf32 = false;  ///< with compute = fp32: tensor cores multiply inputs rounded to tf32
  /// Which operations run as one launch. Level 0 is the reference for the other levels.
  cudnn::Fusion fusion = {};
  /// With `tune`: also time whole steps with the other fusions that worth_timing() returns, and use the fastest. The
  /// result is kept in `winners_folder` with the engines.
  bool other_fusions = true;
  bool deterministic = false;  ///< use only engines that add in a fixed order: equal bits from run to run
  /// For fp16 only. 0: dynamic (starts at 65536, halved after an overflow, doubled after 2000 good steps); else fixed.
  double loss_scale = 0;
  /// Time the candidate engines of each group when the step is made, and use the fastest. Takes seconds to minutes.
  bool tune = false;
  /// Folder of the files of winners (plan_cache.h), which are read and written. Empty: there are no files.
  std::string winners_folder = {};
  /// Null: each rank uses its own winners. If `winners_folder` or `tune` is set, called for each plan that is tried,
  /// with the winners known so far, and again after each timing of engines. Also called for each other fusion that is
  /// timed. A rank that cannot use the answer, because its GPU or cuDNN is another, keeps its own winners.
  AgreeOnWinners agree = {};
  /// Null: there is no other rank. Called for each plan that is tried, so that ranks with equal GPUs leave out the same
  /// failed engines and run the same launches. Also called for each other fusion that is tried, so that all ranks leave
  /// out a fusion that needs more memory than one of them has.
  ShareWithRanks share = {};
  std::size_t workspace_cap_bytes = std::size_t{1} << 30;
  /// Where cuDNN and cuBLASLt are searched for.
  gpu::LibrarySearch libraries = {};
};

/// `graph` must be differentiated; `options.compute` is fp32, fp16 or bf16. `runtime` must outlive the step. `allocate`
/// returns zeroed device memory (device_step.h). With `options.profile`, enqueue_forward_backward() waits for the GPU,
/// so the step cannot be captured. Errors: unsupported, if cuDNN or cuBLASLt is missing, cuDNN has the wrong version,
/// the GPU lacks the type, this build has no kernels for the GPU, or no engine runs some convolution or product, not
/// even unfused; mismatch, if ranks with equal GPUs plan differently; out_of_memory, with what is needed and the batch
/// that fits; backend.
std::unique_ptr<DeviceStep> make_cudnn_step(Graph graph, const StepOptions& options, const CudnnOptions& cudnn,
                                            gpu::GpuRuntime& runtime, const ArenaAllocator& allocate);

/// Returns the reason why this build cannot make a step with this machine's libraries, or "" if only a GPU is needed.
std::string cudnn_unsupported_reason(const gpu::LibrarySearch& libraries = {});

}  // namespace hvd::models
