// Collects everything that explains a result: command line, allow-listed environment, git commit and state, hash of the
// program, compiler and flags, hosts, processor, memory, kernel, library versions, scheduler job. Facts that can change
// a result are marked in_fingerprint.
//
// The facts about the code itself (commit, program, hash) are recorded but not in the fingerprint, because a regression
// gate compares two builds on one machine. The machine, its libraries and their settings are part of the fingerprint.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "bench/store/host_facts.h"
#include "bench/store/process_start.h"
#include "bench/store/run_record.h"

namespace hvd::bench {

/// Returns the hash of the program's file as 16 hex digits; empty if the file cannot be read.
std::string binary_hash();

/// Returns facts about this process and host. Reads /proc and /sys. Never fails: facts that cannot be read are left
/// out. `command` is argv.
Provenance collect_provenance(const std::vector<std::string>& command, const ProcessStart& start);

/// Returns the facts about this program alone: its build, and `command`, which is argv.
Provenance program_facts(const std::vector<std::string>& command, const ProcessStart& start);

/// Returns the facts from the environment: variables that tune a library that we use, and variables that describe the
/// job. Leaves out variables whose name suggests a secret. Pure.
Provenance environment_facts(const Environment& environment);

/// Returns the facts about the host's processors. Pure.
Provenance processor_facts(const Processor& cpu);

/// Returns a hash, 16 hex digits, of the configuration fields of `run` and of the facts whose
/// ProvenanceFact::in_fingerprint is set. The hash leaves out identities, times, results, host names, the size of the
/// allocation around a smaller run, and the seed, which does not change how long a step takes.
std::string fingerprint(const RunRecord& run);

/// Returns a line with which a shell runs `argv` again in the same directory. The launcher command in the line is only
/// a hint.
std::string quoted_command_line(const std::vector<std::string>& argv, const ProcessStart& start);
/// Like quoted_command_line(argv, start), but pure, because the caller gives the directory. Example of a line:
/// "cd /home/me && env OMP_NUM_THREADS=1 mpirun -n 2 hvd_bench --model vgg16".
std::string quoted_command_line(const std::vector<std::string>& argv, const ProcessStart& start,
                                std::string_view directory);

/// Bytes of the process that are in memory now, and the peak so far (VmRSS and VmHWM). 0 if /proc does not have them.
struct ResidentSet {
  std::int64_t now = 0, peak = 0;
};
ResidentSet resident_set();

}  // namespace hvd::bench
