// `hvd_bench simulate`: simulates training steps of worlds that a text describes (costs_text.h), and prints a line of
// JSON for each. Plumbing of `hvdb predict`, described in docs/prediction.md. Starts no MPI and uses no GPU.
#pragma once

#include <string>
#include <vector>

#include "bench/world/options.h"

namespace hvd::bench {

struct SimulateCommand {
  Options options;         ///< the replay profile, and how gradients are reduced
  std::string costs_file;  ///< "-": standard input
  std::string help;        ///< if not empty, print it and exit
};

/// `argv` starts with the program's name and "simulate".
/// Errors: invalid_argument that names the option, the value, and valid values.
SimulateCommand parse_simulate(const std::vector<std::string>& argv);

/// Reads both files, simulates, and returns the lines of JSON. The same files give the same bytes on every machine.
/// Errors: io and invalid_argument, with the file, and the line if it is known.
std::string simulate(const SimulateCommand& command);

}  // namespace hvd::bench
