// Checks of the model, its image size, the processor and the output files. The checks need little memory and run before
// MPI starts.
#pragma once

#include <string>
#include <vector>

#include "bench/world/options.h"
#include "bench/world/setup.h"

namespace hvd::bench {

/// Returns the options as this machine can run them; plan_text() shows them.
/// Errors: invalid_argument for an unknown model (the text suggests a similar name) or an image size that the network
/// cannot take; unsupported for a type that the processor does not support; io for an unreadable replay file.
Setup check_model(const Options& options, GpuBackend* gpus = nullptr);

/// Call on rank 0 before anything is written. `ranks`: the size of the world.
/// Errors: io if a file of --record-replay or --timeline-filename cannot be written, or if it exists and is not
/// such a file (then it stays untouched); invalid_argument as for require_files_of_their_own().
void check_outputs(const Options& options, int ranks);

struct OutputFile {
  const char* option;
  std::string path;
};

/// Checks that every output has a file of its own. Errors: invalid_argument if two outputs are the same file, or if
/// standard output or standard error goes to an output file.
void require_files_of_their_own(const std::vector<OutputFile>& outputs);

}  // namespace hvd::bench
