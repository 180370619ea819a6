// Everything that explains a figure, collected once at the edge: command line, allow-listed environment,
// git commit and dirt, binary hash, compiler and flags, hosts, processor, memory, kernel, library versions,
// scheduler job. What can change a result is marked in_fingerprint.
#pragma once

#include <string>
#include <vector>

#include "bench/run_record.h"

namespace hvd::bench {

/// Facts of this process and host. Reads /proc, /sys and the environment; never fails: what cannot be read
/// is left out. `command` is argv.
Provenance collect_provenance(const std::vector<std::string>& command);

/// Hash over the configuration fields of `run` and the provenance rows with in_fingerprint, 16 hex digits.
std::string fingerprint(const RunRecord& run);

/// `argv` quoted so that a shell runs it again, working directory and launcher hint included.
std::string quoted_command_line(const std::vector<std::string>& argv);

/// Resident set now and its peak so far (VmRSS, VmHWM), bytes; 0 where /proc lacks them.
struct ResidentSet {
  std::int64_t now = 0, peak = 0;
};
ResidentSet resident_set();

}  // namespace hvd::bench
