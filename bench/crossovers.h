// Where the host planes change their algorithm between hosts: found from measured times (`hvd_bench coll
// --find-crossovers`), kept in a folder per case, and taken by later runs with --tuning-folder. Rank 0 alone reads and
// writes files.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/deadline.h"
#include "engine/comm/communicator.h"

namespace hvd::bench {

/// What the crossovers depend on, by name: hosts and ranks, processor, MPI and its transport, version of hvd_bench.
using CrossoverCase = std::vector<std::pair<std::string, std::string>>;
CrossoverCase crossover_case(const comm::Topology& world, const std::string& library);

/// Seconds of one operation of `bytes` with each algorithm, > 0.
struct AllReduceTimes {
  std::size_t bytes = 0;
  double doubling = 0, rabenseifner = 0, ring = 0;
};
/// reduce_scatter or all_gather: the exchange for small messages, and the ring.
struct ShareTimes {
  std::size_t bytes = 0;
  double direct = 0, ring = 0;
};
/// Picks the cuts between ranges of sizes with the smallest sum of log(time) over all sizes, so that one disturbed size
/// moves a threshold by little. Below the smallest size the default thresholds stay; with no sizes all of them do.
/// Pure. Shapes: sizes in any order.
comm::Thresholds best_thresholds(std::vector<AllReduceTimes> reductions, std::vector<ShareTimes> shares);

/// "all_reduce: doubling up to 64 KiB, rabenseifner up to 1 MiB, above that ring; reduce_scatter and all_gather: direct
/// up to 32 KiB, above that ring".
std::string crossover_text(const comm::Thresholds& thresholds);

/// "FOLDER/between-hosts-9f0c2d11a4b3e877.crossovers".
std::string crossover_path(const std::string& folder, const CrossoverCase& of);
std::string crossover_file(const CrossoverCase& of, const comm::Thresholds& thresholds);
/// Nothing where the text is of another case, or damaged.
std::optional<comm::Thresholds> parse_crossovers(const std::string& text, const CrossoverCase& of);

/// Makes the folder; written beside and renamed into place. Returns the file. Errors: io, naming the file.
std::string keep_crossovers(const std::string& folder, const CrossoverCase& of, const comm::Thresholds& thresholds);
/// Collective: what rank 0 finds in `folder` for this world, on all ranks. Nothing on one host, with an empty `folder`,
/// or where there is no such file.
std::optional<comm::Thresholds> kept_crossovers(comm::Communicator& communicator, const std::string& folder,
                                                Deadline deadline);

}  // namespace hvd::bench
