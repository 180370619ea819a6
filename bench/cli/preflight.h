// Checks that need neither MPI nor much memory: the model, its image size, the processor.
#pragma once

#include <string>
#include <vector>

#include "bench/train/options.h"
#include "bench/train/setup.h"

namespace hvd::bench {

/// Returns the options as this machine can run them, for the header.
/// Errors: invalid_argument for an unknown model (with the name that was probably meant) or an image size that
/// the network cannot take; unsupported for a type that the processor lacks; io for an unreadable replay file.
Setup check_model(const Options& options, GpuBackend* gpus = nullptr);

/// Call on rank 0 before anything is written. `ranks`: the size of the world.
/// Errors: io if a file of --record-replay or --timeline-filename cannot be written or holds something else, which
/// stays untouched; invalid_argument if two outputs are the same file, or one is where standard output goes.
void check_outputs(const Options& options, int ranks);

/// A file that an option names.
struct OutputFile {
  const char* option;
  std::string path;
};

/// Errors: invalid_argument when two of them are one file, or one is where standard output or standard error goes.
void require_files_of_their_own(const std::vector<OutputFile>& outputs);

}  // namespace hvd::bench
