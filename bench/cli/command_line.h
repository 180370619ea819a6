// Turns the command line and the HOROVOD_* variables into plain Options. Pure: no I/O, no getenv, no exit.
#pragma once

#include <string>
#include <vector>

#include "bench/cli/analyse/command.h"
#include "bench/cli/coll/command.h"
#include "bench/cli/simulate/command.h"
#include "bench/store/process_start.h"
#include "bench/world/options.h"

namespace hvd::bench {

enum class Command : std::uint8_t {
  kTrain,  ///< also `validate`, with options.validate set
  kDoctor,
  kStored,  ///< list the values of `label` in `files`
  kColl,    ///< `coll`: time collective operations
  kSimulate,
  kAnalyse,
  kPrint,  ///< --help or --version: print `text` and end
};

struct CommandLine {
  Command command = Command::kTrain;
  Options options;
  CollCommand coll;
  SimulateCommand simulate;
  AnalyseCommand analyse;
  std::string label;               ///< for `stored`: the key of the label
  std::vector<std::string> files;  ///< for `stored`: the stores to search
  std::string text;
};

/// `argv` starts with the program's name. Option names of several words may have hyphens or underscores. A later option
/// replaces an earlier one, and the command line overrides the environment.
/// `--comm none` and `--schedule none` mean the same: every rank trains, nothing is reduced, and the ranks find one
/// another as they would without the option. Both are returned as engine.schedule kNone.
/// Errors: invalid_argument or unsupported; the text names the option or variable, its value, and what is allowed.
CommandLine parse_command_line(const std::vector<std::string>& argv, const Environment& environment);

}  // namespace hvd::bench
