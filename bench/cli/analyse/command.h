// `hvd_bench analyse`: computes what a training of another program lost where, prints the table of --efficiency, and
// stores the runs. A text has the samples (samples_text.h). Plumbing of hvdb.torch_efficiency. Starts no MPI and uses
// no GPU.
#pragma once

#include <string>
#include <vector>

#include "bench/store/process_start.h"

namespace hvd::bench {

struct AnalyseCommand {
  std::string samples_file;  ///< "-": standard input
  std::string db_file;
  std::string help;  ///< if not empty, print it and exit
};

/// `argv` starts with the program's name and "analyse".
/// Errors: invalid_argument that names the option, the value, and valid values.
AnalyseCommand parse_analyse(const std::vector<std::string>& argv);

struct Analysed {
  std::string text;     ///< the table
  std::string warning;  ///< a line for the user, or ""
  std::string problem;  ///< why the runs are not in the store, or ""
};

/// Reads the text, stores the runs, and returns what to print.
/// Errors: io and invalid_argument, with the file, and the line if it is known.
Analysed analyse(const AnalyseCommand& command, const std::vector<std::string>& argv, const ProcessStart& start);

}  // namespace hvd::bench
