// Checks that all ranks of a launch have the same settings. Settings can differ because of `mpirun a : b`,
// HOROVOD_* variables that were not forwarded to every host, or an old program on one host. No other check would notice
// that one rank has a smaller batch or another image size, and the throughput would be wrong.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/deadline.h"
#include "engine/base/error.h"
#include "engine/comm/communicator.h"

namespace hvd::bench {

/// An error that every rank knows and throws, so no rank's wait needs to be aborted.
class AgreedError : public Error {
 public:
  using Error::Error;
};

/// The settings that must be equal on all ranks, by option name.
using RunSettings = std::vector<std::pair<std::string, std::string>>;

/// Collective. Call it before an engine owns the communicator. Errors: mismatch on all ranks, with a text that names
/// the option, the ranks and their values; errors of the communicator.
void require_equal_settings(comm::Communicator& communicator, const RunSettings& mine, Deadline deadline);

/// Collective. Call it before an engine owns the communicator. `objection`: this rank's reason not to run, or "".
/// Errors: invalid_argument on all ranks, with the lowest objecting rank's text; errors of the communicator.
void require_no_objection(comm::Communicator& communicator, const std::string& objection, Deadline deadline);

/// Returns "NAME is A on ... and B on ..." for the first line (key_lines.h) that differs; empty if all lines are equal.
std::string first_differing_line(std::string_view root, std::string_view other, const std::string& root_name,
                                 const std::string& other_name);

}  // namespace hvd::bench
