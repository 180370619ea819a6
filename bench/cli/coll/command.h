// The command line of `hvd_bench coll`: the option letters of nccl-tests, and our own options. Pure.
#pragma once

#include <string>
#include <vector>

#include "bench/coll/options.h"

namespace hvd::bench {

struct CollCommand {
  coll::CollOptions options;
  std::string help;  ///< if not empty, print it and exit
};

/// `argv` starts with the program's name and "coll".
/// Errors: invalid_argument that names the option, the value, and valid values.
CollCommand parse_coll(const std::vector<std::string>& argv);

}  // namespace hvd::bench
