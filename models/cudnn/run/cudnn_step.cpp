// make_cudnn_step() loads the libraries, makes a planner for the present GPU, and gives libraries and planner to the
// executor.
#include "models/cudnn/run/cudnn_step.h"

#include <utility>

#include "engine/base/error.h"
#include "models/cudnn/plan/engine_heuristics.h"
#include "models/cudnn/run/executor.h"
#include "models/train_step.h"

namespace hvd::models {
namespace {

using cudnn::ComputeType;

ComputeType compute_type(DataType type, bool tf32) {
  if (tf32 && type != DataType::kF32) {
    throw Error(Errc::kInvalidArgument, "tf32 is a way to compute in fp32, not in " + std::string(name(type)));
  }
  switch (type) {
    case DataType::kF32: return tf32 ? ComputeType::kTf32 : ComputeType::kFp32;
    case DataType::kF16: return ComputeType::kFp16;
    case DataType::kBF16: return ComputeType::kBf16;
    default: break;
  }
  throw Error(Errc::kUnsupported, "a GPU computes in fp32, tf32, fp16 or bf16, not in " + std::string(name(type)));
}

}  // namespace

std::unique_ptr<DeviceStep> make_cudnn_step(Graph graph, const StepOptions& options, const CudnnOptions& cudnn,
                                            gpu::GpuRuntime& runtime, const ArenaAllocator& allocate) {
  const ComputeType compute = compute_type(options.compute, cudnn.tf32);
  if (options.gradient == DataType::kF64) {
    throw Error(Errc::kUnsupported, "no GPU backend has gradients in fp64; use fp32, fp16 or bf16");
  }
  require_floating(options.gradient);
  if (std::string why = cudnn::type_refusal(runtime.device(), compute, HVD_OLDEST_CUDA_ARCHITECTURE); !why.empty()) {
    throw Error(Errc::kUnsupported, runtime.label() + ": " + why);
  }
  runtime.make_current();
  const cudnn::Backends backends{.cudnn = cudnn::Library::load(cudnn.libraries),
                                 .cublaslt = cudnn::CublasLt::load(cudnn.libraries),
                                 .kernels = cudnn::kernels::gpu_table()};
  // `launcher` must outlive the planner, even if no step is made: the planner's lists of engines use the handle of
  // `launcher`.
  const auto launcher = std::make_shared<cudnn::GroupLauncher>(runtime, backends, options.threads);
  const auto planner = cudnn::make_planner(backends.cudnn, launcher->handle().get(), runtime.device().name);
  const cudnn::PlanOptions plan{.compute = compute,
                                .gradient = options.gradient,
                                .deterministic = cudnn.deterministic,
                                .workspace_cap_bytes = cudnn.workspace_cap_bytes};
  cudnn::PlanSource plan_source;
  plan_source.fusions = cudnn.other_fusions ? cudnn::worth_timing(cudnn.fusion) : std::vector{cudnn.fusion};
  plan_source.plan = [&](const Graph& step_graph, const cudnn::FusionOptions& fusion,
                         const cudnn::EngineFailures& failed) {
    cudnn::PlanOptions way = plan;
    way.fusion = fusion;
    way.failed = failed;
    return planner->plan(step_graph, way);
  };
  return cudnn::make_executor(std::move(graph), plan_source,
                              {.seed = options.seed,
                               .profile = options.profile,
                               .loss_scale = cudnn.loss_scale,
                               .gradient_prescale = options.gradient_prescale,
                               .tune = cudnn.tune,
                               .winners_folder = cudnn.winners_folder,
                               .exchange = cudnn.exchange,
                               .rank = cudnn.rank},
                              runtime, backends, launcher, allocate);
}

std::string cudnn_unsupported_reason(const gpu::LibrarySearch& libraries) {
  try {
    static_cast<void>(cudnn::Library::load(libraries));
    static_cast<void>(cudnn::CublasLt::load(libraries));
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

}  // namespace hvd::models
