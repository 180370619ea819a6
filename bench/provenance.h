// Everything that explains a figure, collected once at the edge: command line, allow-listed environment,
// git commit and dirt, binary hash, compiler and flags, hosts, processor, memory, kernel, library versions,
// scheduler job. What can change a result is marked in_fingerprint.
//
// The code itself (commit, binary, hash) is recorded but not in the fingerprint: two builds of this program on
// one machine are what a regression gate compares. The machine, its libraries and their settings are in it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "bench/cli/environment.h"
#include "bench/run_record.h"

namespace hvd::bench {

/// Returns the hash of the program's file as 16 hex digits; empty if the file cannot be read.
std::string binary_hash();

/// Facts of this process and host. Reads /proc, /sys and the environment; never fails: what cannot be read
/// is left out. `command` is argv.
Provenance collect_provenance(const std::vector<std::string>& command);

/// The environment's part of it: only variables that tune a library we use, or name the job, and never one
/// whose name speaks of a secret. Pure.
Provenance environment_facts(const Environment& environment);

/// Hash over the configuration fields of `run` and the provenance rows with in_fingerprint, 16 hex digits.
/// Left out: identities, times, results, host names, the size of the allocation around a smaller run, and
/// the seed, which changes the numbers that are multiplied and not how long that takes.
std::string fingerprint(const RunRecord& run);

/// `argv` quoted so that a shell runs it again, working directory and launcher hint included.
std::string quoted_command_line(const std::vector<std::string>& argv);
/// The same, pure: "cd /home/me && env OMP_NUM_THREADS=1 mpirun -n 2 hvd_bench --model vgg16".
std::string quoted_command_line(const std::vector<std::string>& argv, const Environment& environment,
                                std::string_view directory);

/// Resident set now and its peak so far (VmRSS, VmHWM), bytes; 0 where /proc lacks them.
struct ResidentSet {
  std::int64_t now = 0, peak = 0;
};
ResidentSet resident_set();

}  // namespace hvd::bench
