// Crossovers are message sizes from which the host data planes use another algorithm for the exchange between hosts.
// `hvd_bench coll --find-crossovers` finds crossovers from measured times and keeps them in a folder, one file per
// case. Later runs with --tuning-folder use the kept crossovers. Only rank 0 reads and writes files.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/deadline.h"
#include "engine/comm/communicator.h"

namespace hvd::bench {

/// The properties that crossovers depend on, as name and value: hosts, ranks, processor, MPI, version of hvd_bench.
using CrossoverCase = std::vector<std::pair<std::string, std::string>>;
CrossoverCase crossover_case(const comm::Topology& world, const std::string& library);

/// Seconds (> 0) that one all_reduce of `bytes` takes with each algorithm.
struct AllReduceTimes {
  std::size_t bytes = 0;
  double doubling = 0, rabenseifner = 0, ring = 0;
};
/// Seconds (> 0) that one reduce_scatter or all_gather of `bytes` takes with the direct exchange, which is meant for
/// small messages, and with the ring.
struct ShareTimes {
  std::size_t bytes = 0;
  double direct = 0, ring = 0;
};
/// Picks the thresholds for which the sum of log(time) over all sizes is smallest. With logarithms, a size whose
/// measurement was disturbed moves a threshold only a little. Below the smallest measured size, and if there are no
/// sizes, the default thresholds are kept. Pure. Shapes: sizes in any order.
comm::Thresholds best_thresholds(std::vector<AllReduceTimes> reductions, std::vector<ShareTimes> shares);

/// Returns "all_reduce: doubling up to 64 KiB, rabenseifner up to 1 MiB, above that ring; reduce_scatter and
/// all_gather: direct up to 32 KiB, above that ring".
std::string crossover_text(const comm::Thresholds& thresholds);

/// Returns "FOLDER/between-hosts-9f0c2d11a4b3e877.crossovers".
std::string crossover_path(const std::string& folder, const CrossoverCase& conditions);
std::string crossover_file(const CrossoverCase& conditions, const comm::Thresholds& thresholds);
/// Reads what crossover_file() wrote. Returns nothing if the text belongs to another case or is damaged.
std::optional<comm::Thresholds> parse_crossovers(const std::string& text, const CrossoverCase& conditions);

/// Creates the folder if needed, writes a temporary file and renames it. Returns the path. Errors: io, naming the file.
std::string keep_crossovers(const std::string& folder, const CrossoverCase& conditions,
                            const comm::Thresholds& thresholds);
/// Collective: rank 0 reads the file in `folder` for this world and broadcasts it to all ranks. Returns nothing on one
/// host, if `folder` is empty, or if there is no such file.
std::optional<comm::Thresholds> kept_crossovers(comm::Communicator& communicator, const std::string& folder,
                                                Deadline deadline);

}  // namespace hvd::bench
