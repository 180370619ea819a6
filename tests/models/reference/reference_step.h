// The naive backend in double precision with which the tests compare oneDNN, cuDNN and replays. It walks the graph and
// runs one function of ops.h for each node. Threads: as for every TrainStep.
#pragma once

#include <memory>

#include "models/train_step.h"

namespace hvd::models {

/// `graph` must be differentiated. Gradients may be fp32, fp64, fp16 or bf16. Errors: invalid_argument for a graph that
/// is not differentiated, and for gradients of another type.
std::unique_ptr<TrainStep> make_reference_step(Graph graph, const StepOptions& options, const ArenaAllocator& allocate);

}  // namespace hvd::models
