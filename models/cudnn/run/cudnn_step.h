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
#include "models/cudnn/lowering/lowering.h"
#include "models/cudnn/plan/engine_failures.h"
#include "models/device_step.h"
#include "models/graph/graph.h"

namespace hvd::models {

struct CudnnOptions {
  bool tf32 = false;  ///< with compute = fp32: tensor cores multiply inputs rounded to tf32
  /// Which operations run as one launch. Level 0 is the reference for the other levels.
  cudnn::FusionOptions fusion = {};
  /// With `tune`: also time whole steps with the other fusions that worth_timing() returns, and use the fastest fusion.
  /// `winners_folder` keeps the name of this fusion beside the fastest engines.
  bool other_fusions = true;
  bool deterministic = false;  ///< use only engines that add in a fixed order, so that runs give equal bits
  /// The loss scale, used in fp16 only. 0: a dynamic scale, which starts at 65536, is halved after an overflow, and is
  /// doubled after 2000 steps without overflow. Any other number: a fixed scale.
  double loss_scale = 0;
  /// Time the candidate engines of each group when the step is made, and use the fastest engines. Timing takes seconds
  /// to minutes.
  bool tune = false;
  /// Folder of the files of winners (winners.h). The step reads and writes these files. Empty: no files are used.
  std::string winners_folder = {};
  /// Null: there is no other rank. Otherwise all ranks call the function equally often. For each fusion, the ranks
  /// exchange the winners that rank 0 knows, and then a report on each rank's plan. With `tune`, the ranks also
  /// exchange the winners and times that rank 0 measured.
  ExchangeTexts exchange = {};
  int rank = 0;  ///< this rank's place in the answer of `exchange`
  std::size_t workspace_cap_bytes = std::size_t{1} << 30;
  /// The places where cuDNN and cuBLASLt are searched for.
  gpu::LibrarySearch libraries = {};
};

/// `graph` must be differentiated; `options.compute` is fp32, fp16 or bf16. `runtime` must outlive the step. `allocate`
/// returns zeroed device memory (device_step.h). With `options.profile`, enqueue_forward_backward() waits for the GPU,
/// so the step cannot be captured. Errors: unsupported, if cuDNN or cuBLASLt is missing, if cuDNN has the wrong
/// version, if the GPU does not support `options.compute`, if this build has no kernels for the GPU, or if there is a
/// convolution or product that no engine can run even without fusion; mismatch, if ranks with equal GPUs plan
/// differently; out_of_memory, with the memory that is needed and the batch that fits; backend. If an error arises
/// while ranks look for a plan, all ranks throw this error, as ErrorOfAllRanks.
std::unique_ptr<DeviceStep> make_cudnn_step(Graph graph, const StepOptions& options, const CudnnOptions& cudnn,
                                            gpu::GpuRuntime& runtime, const ArenaAllocator& allocate);

/// Returns the reason why this build cannot make a step with this machine's libraries, or "" if it can make a step on a
/// GPU.
std::string cudnn_unsupported_reason(const gpu::LibrarySearch& libraries = {});

}  // namespace hvd::models
