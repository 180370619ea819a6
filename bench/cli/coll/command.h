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

/// Parses bytes such as "4096", "4K", "1.5M" or "2G". As in nccl-tests, the units are binary. Errors: invalid_argument.
std::size_t parse_bytes(std::string_view where, std::string_view text);

}  // namespace hvd::bench
