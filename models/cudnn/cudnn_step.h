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

#include "engine/base/error.h"
#include "engine/gpu/shared_library.h"
#include "models/cudnn/analyse.h"
#include "models/device_step.h"
#include "models/graph/graph.h"

namespace hvd::models {

/// Collective. Takes this rank's text and returns the texts of all ranks, by rank. An error that it throws ends
/// make_cudnn_step().
using ExchangeTexts = std::function<std::vector<std::string>(const std::string& mine)>;

/// An error that make_cudnn_step() throws on every rank, with the same text: "rank 1: " and why rank 1 cannot go on.
class ErrorOfAllRanks : public Error {
 public:
  ErrorOfAllRanks(std::size_t rank, Errc code, const std::string& why)
      : Error(code, "rank " + std::to_string(rank) + ": " + why), rank_(rank) {}
  [[nodiscard]] std::size_t rank() const noexcept { return rank_; }

 private:
  std::size_t rank_;
};

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
  /// Null: there is no other rank. Otherwise all ranks call it equally often. They exchange, for each fusion, the
  /// winners that rank 0 knows, then a report on each rank's plan, and with `tune` the winners and times that rank 0
  /// measured.
  ExchangeTexts exchange = {};
  int rank = 0;  ///< this rank's place in the answer of `exchange`
  std::size_t workspace_cap_bytes = std::size_t{1} << 30;
  /// Where cuDNN and cuBLASLt are searched for.
  gpu::LibrarySearch libraries = {};
};

/// `graph` must be differentiated; `options.compute` is fp32, fp16 or bf16. `runtime` must outlive the step. `allocate`
/// returns zeroed device memory (device_step.h). With `options.profile`, enqueue_forward_backward() waits for the GPU,
/// so the step cannot be captured. Errors: unsupported, if cuDNN or cuBLASLt is missing, cuDNN has the wrong version,
/// the GPU lacks the type, this build has no kernels for the GPU, or no engine runs some convolution or product, not
/// even unfused; mismatch, if ranks with equal GPUs plan differently; out_of_memory, with what is needed and the batch
/// that fits; backend. If an error arises while ranks look for a plan, all ranks throw it, as ErrorOfAllRanks.
std::unique_ptr<DeviceStep> make_cudnn_step(Graph graph, const StepOptions& options, const CudnnOptions& cudnn,
                                            gpu::GpuRuntime& runtime, const ArenaAllocator& allocate);

/// Returns the reason why this build cannot make a step with this machine's libraries, or "" if only a GPU is needed.
std::string cudnn_unsupported_reason(const gpu::LibrarySearch& libraries = {});

}  // namespace hvd::models
