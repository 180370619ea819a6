// The command line: options and HOROVOD_* variables in, plain Options out. Pure: no I/O, no getenv, no exit.
#pragma once

#include <string>
#include <vector>

#include "bench/cli/coll_command.h"
#include "bench/cli/environment.h"
#include "bench/options.h"

namespace hvd::bench {

enum class Command : std::uint8_t {
  kTrain,  ///< also `validate`: then options.validate is set
  kDoctor,
  kStored,  ///< list the values of `label` in `files`
  kColl,    ///< time collective operations: `coll`
  kPrint,   ///< --help or --version: print `text` and be done
};

struct CommandLine {
  Command command = Command::kTrain;
  Options options;
  CollCommand coll;
  std::string label;               ///< of `stored`
  std::vector<std::string> files;  ///< of `stored`
  std::string text;
};

/// `argv` with the program's name first. Every option of several words is known with hyphens and with
/// underscores; a later one replaces an earlier one; the command line wins over the environment.
/// `--comm none` and `--schedule none` are the same thing: every rank trains, nothing is reduced, and how the
/// ranks find one another is decided as without the option. Both come back as engine.schedule kNone.
/// Errors: invalid_argument or unsupported, naming the option or the variable, the value, and what is right.
CommandLine parse_command_line(const std::vector<std::string>& argv, const Environment& environment);

}  // namespace hvd::bench
