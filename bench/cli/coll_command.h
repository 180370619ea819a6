// The command line of `hvd_bench coll`: nccl-tests' letters, and what they do not say. Pure.
#pragma once

#include <string>
#include <vector>

#include "bench/coll/options.h"
#include "bench/options.h"

namespace hvd::bench {

struct CollCommand {
  Options world;  ///< comm, ranks and deadlines; the rest is not read
  coll::CollOptions options;
  std::string help;  ///< not empty: print it and be done
};

/// `argv` with the program's name first and "coll" second.
/// Errors: invalid_argument that names the option, the value, and what is right.
CollCommand parse_coll(const std::vector<std::string>& argv);

/// "4096", "4K", "1.5M", "2G": bytes, with binary multiples as nccl-tests has them. Errors: invalid_argument.
std::size_t parse_bytes(std::string_view where, std::string_view text);

}  // namespace hvd::bench
