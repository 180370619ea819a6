// Training steps on an NVIDIA GPU: a Plan (plan.h) executed on a gpu::GpuRuntime. The plan is made for the GPU that is
// there; everything is allocated, finalised and bound to addresses when the step is made, and a step only enqueues.
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

/// Given what one rank found to be the fastest engines, or way to fuse, says what all ranks use: the text of one of
/// them. Every rank calls it equally often. Errors: whoever provides it says; they end the making of the step.
using AgreeOnWinners = std::function<std::string(const std::string& mine)>;

/// What every rank says, by rank, given what this one says. Every rank calls it equally often. Errors: as
/// AgreeOnWinners.
using ShareWithRanks = std::function<std::vector<std::string>(const std::string& mine)>;

struct CudnnOptions {
  bool tf32 = false;  ///< with compute = fp32: products of rounded inputs, on tensor cores
  /// What runs as one launch, and who runs batch norms; of level 0 the reference for the others.
  cudnn::Fusion fusion = {};
  /// With `tune`: also time whole steps fused in other ways, of at most this level (worth_timing()), and use the
  /// fastest. Kept in `winners_folder` beside the engines.
  bool other_fusions = true;
  bool deterministic = false;  ///< only engines that add in a fixed order: equal bits from run to run
  /// fp16 alone. 0: dynamic (half after an overflow, twice after 2000 good steps, from 65536); else fixed.
  double loss_scale = 0;
  /// Time the best engines of each operation when the step is made, and use the fastest. Takes seconds to minutes.
  bool tune = false;
  /// Where the winners are kept and looked for, by cuDNN version, GPU and program; empty: nowhere.
  std::string winners_folder = {};
  /// Null: this rank's own. Else called with `winners_folder` (what is kept there) or `tune`, once for each plan that
  /// is tried, once more with `tune` (what was timed), and once for each other way to fuse that is timed. A rank that
  /// cannot use the answer (it has another GPU or cuDNN) keeps its own.
  AgreeOnWinners agree = {};
  /// Null: there is no other rank. Else called once for each plan that is tried, so that ranks with equal GPUs leave
  /// out the same engines and run the same launches, and where other ways to fuse are tried, so that all leave out what
  /// does not fit on one of them.
  ShareWithRanks share = {};
  std::size_t workspace_cap_bytes = std::size_t{1} << 30;
  /// Where cuDNN and cuBLASLt may lie.
  gpu::LibrarySearch libraries = {};
};

/// `graph` must be differentiated; `options.compute` is fp32, fp16 or bf16. `runtime` must outlive the step. `allocate`
/// gives zeroed device memory (device_step.h). With `options.profile` the step is waited for where it is enqueued, and
/// cannot be captured. Errors: unsupported without cuDNN or cuBLASLt, for a cuDNN of the wrong
/// version, a GPU that lacks the type or that this build has no kernels for, a convolution or a product that no engine
/// runs even alone; mismatch, if ranks with equal GPUs plan differently; out_of_memory, with what is needed and the
/// batch that fits; backend.
std::unique_ptr<DeviceStep> make_cudnn_step(Graph graph, const StepOptions& options, const CudnnOptions& cudnn,
                                            gpu::GpuRuntime& runtime, const ArenaAllocator& allocate);

/// Why no step can be made in this build and with the libraries that this machine has; empty: it can, given a GPU.
std::string cudnn_unsupported_reason(const gpu::LibrarySearch& libraries = {});

}  // namespace hvd::models
