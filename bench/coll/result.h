// What a session found, cell by cell: figures from samples. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/coll/cells.h"
#include "bench/coll/options.h"
#include "bench/coll/schedule.h"
#include "bench/run_record.h"
#include "engine/comm/communicator.h"

namespace hvd::bench::coll {

/// How the samples of a cell differ, as nccl-tests' -I has it: seconds of one operation, each the mean over a batch.
struct Spread {
  double minimum = 0, maximum = 0, mean = 0;
  double percentile_95 = 0, percentile_99 = 0;  ///< by nearest rank: the maximum, where there are few samples
  double deviation = 0;                         ///< standard deviation, of the samples as a population
  [[nodiscard]] double variation() const { return mean > 0 ? deviation / mean : 0; }
};

/// One cell's figures. Times are seconds of one operation.
struct CellResult {
  Cell cell;
  std::size_t bytes = 0;  ///< nccl-tests' size
  std::size_t samples = 0;
  std::size_t batch = 1;                    ///< operations a sample
  Estimate seconds;                         ///< median of the slowest rank's time; meaningless without samples
  double transfer = 0;                      ///< median, from the last arrival to the last end
  double skew = 0;                          ///< median, first to last arrival, once a sample
  int last_rank = 0;                        ///< the rank that arrived last most often ...
  double last_share = 0;                    ///< ... in this share of the samples
  double algorithm_rate = 0, bus_rate = 0;  ///< bytes per second
  std::optional<double> bound;         ///< fraction: the bound's time over this one, or the bus rate over the link's
  std::optional<Estimate> ratio;       ///< of time to the first variant's, round by round; not for the first
  std::optional<std::uint64_t> wrong;  ///< elements over all ranks; nothing: not checked
  Spread spread;
  bool settled = false;       ///< the interval of all samples is as narrow as was asked for
  std::string stop_reason;    ///< "interval narrow enough", "time cap", "SIGTERM", ...
  std::string plane;          ///< DataPlane::description() of its communicator
  std::vector<Sample> taken;  ///< [samples], by round
};

struct World {
  int ranks = 1, nodes = 1;
  std::string comm, library;
  std::vector<std::string> hosts;  ///< [rank]
  double clock_uncertainty = 0;    ///< seconds by which skew and transfer may be wrong; 0: one clock
  std::string gpu;                 ///< name of rank 0's; empty: buffers are in memory of hosts
  bool oversubscribed = false;     ///< some host has more ranks than processors that they may use
  std::string numa;                ///< numa.of_rank: "node 0: ranks 0-3; node 1: ranks 4-7"; empty: unknown
  std::vector<std::string> cautions;
};

struct CollResult {
  World world;
  std::vector<CellResult> cells;  ///< without the bare kernels, in the order of make_cells()
  std::vector<std::string> variants;
  std::string interrupted;  ///< name of the signal, or the error, that ended it; empty: all was measured
  std::optional<comm::Thresholds> crossovers;  ///< with find_crossovers: found; else: taken from the folder
  std::string started_utc, finished_utc;
  std::size_t arena_bytes = 0;  ///< of one rank and variant
  std::size_t cache_bytes = 0;  ///< last-level cache; 0: unknown
  /// 0; 1 where a result is wrong; 7 where a signal ended it.
  [[nodiscard]] int exit_code() const;
};

/// `wrong` is [cell]; `link_gbit` is of one rank's link, for a world that is not one host.
std::vector<CellResult> results_of(const std::vector<Cell>& cells, const Schedule& schedule,
                                   const std::vector<std::optional<std::uint64_t>>& wrong, const World& world,
                                   std::optional<double> link_gbit, const std::string& interrupted);

/// The three sides of a search for crossovers, from `base`: doubling (the direct exchange for operations on shares),
/// rabenseifner and ring (both the ring for operations on shares), for all sizes.
std::vector<Variant> crossover_variants(const Variant& base);
/// `cells`: those of a session with these variants. Cells without samples are left out.
comm::Thresholds crossovers_of(const std::vector<CellResult>& cells);

}  // namespace hvd::bench::coll
