// What can be judged before MPI starts and memory is taken: the model, its image size, the processor.
#pragma once

#include "bench/options.h"
#include "bench/train/setup.h"

namespace hvd::bench {

/// The settled wishes, for the header.
/// Errors: invalid_argument for an unknown model (with the name that was probably meant) or an image size that
/// the network cannot take; unsupported for a type that the processor lacks; io for an unreadable replay file.
Setup check_model(const Options& options, GpuBackend* gpus = nullptr);

/// On rank 0, which writes it at the end. Errors: io when the file of --record-replay cannot be written or holds
/// something else, which is left untouched.
void check_replay_target(const Options& options);

}  // namespace hvd::bench
