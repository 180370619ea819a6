#include "bench/micro/training_bench.h"
#include "engine/base/error.h"

namespace hvd::bench {

std::unique_ptr<TrainingBench> make_gpu_bench(const TrainingOptions& /*options*/) {
  throw Error(Errc::kUnsupported, "--device cuda: this build has no cuDNN backend to train with; use --device cpu");
}

}  // namespace hvd::bench
