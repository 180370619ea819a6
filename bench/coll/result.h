// The results of a session: figures of every cell, computed from its samples. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/coll/cells.h"
#include "bench/coll/options.h"
#include "bench/coll/schedule.h"
#include "bench/store/run_record.h"
#include "engine/comm/communicator.h"

namespace hvd::bench::coll {

/// The spread of a cell's samples, as option -I of nccl-tests prints it. A sample is the mean over the operations of a
/// batch, in seconds per operation.
struct Spread {
  double minimum = 0, maximum = 0, mean = 0;
  double percentile_95 = 0, percentile_99 = 0;  ///< nearest samples; equal to `maximum` if there are few samples
  double deviation = 0;                         ///< standard deviation, with the samples as the whole population
  [[nodiscard]] double variation() const { return mean > 0 ? deviation / mean : 0; }
};

/// The figures of one cell. Times are in seconds per operation, except `skew`. A rank arrives when it begins a sample.
struct CellResult {
  Cell cell;
  std::size_t bytes = 0;  ///< the size that nccl-tests prints
  std::size_t samples = 0;
  std::size_t batch = 1;  ///< operations per sample
  Estimate seconds;       ///< median of the slowest rank's time; meaningless without samples
  double transfer = 0;    ///< median over samples: time from last arrival to last end, per operation
  double skew = 0;        ///< median over samples: time from first to last arrival; not divided by `batch`
  int last_rank = 0;      ///< the rank that most often arrived last
  double last_share = 0;  ///< share of the samples in which `last_rank` arrived last
  double algorithm_rate = 0, bus_rate = 0;  ///< bytes per second
  std::optional<double> bound;         ///< bare kernel's time / this cell's time; between hosts: bus rate / link rate
  std::optional<Estimate> ratio;       ///< median over rounds: time / first variant's time; nullopt for that variant
  std::optional<std::uint64_t> wrong;  ///< number of wrong elements over all ranks; nullopt: not checked
  Spread spread;
  bool settled = false;       ///< the cell has enough samples, and `seconds` has an interval as narrow as requested
  std::string stop_reason;    ///< "interval narrow enough", "time cap", "SIGTERM", ...
  std::string plane;          ///< DataPlane::description() of the cell's communicator
  std::vector<Sample> taken;  ///< all samples, ordered by round
};

struct World {
  int ranks = 1, nodes = 1;
  std::string comm, library;
  std::vector<std::string> hosts;  ///< [rank]
  double clock_uncertainty = 0;    ///< seconds by which skew and transfer may be wrong; 0: all ranks have one clock
  std::string gpu;                 ///< name of rank 0's GPU; empty if buffers are in host memory
  bool oversubscribed = false;     ///< a host has more ranks than processors that its ranks may use
  Provenance facts = {};           ///< where ranks may run, their GPUs, and cautions
};

struct CollResult {
  World world;
  std::vector<CellResult> cells;  ///< without the bare kernels, in the order of make_cells()
  std::vector<std::string> variants;
  std::string interrupted;  ///< the signal or error that ended the session early; empty: all cells were measured
  std::optional<comm::Thresholds> crossovers;  ///< the found ones with find_crossovers, else those loaded and used
  std::string started_utc, finished_utc;
  std::size_t arena_bytes = 0;  ///< size of one arena of a rank
  std::size_t cache_bytes = 0;  ///< last-level cache; 0: unknown
  /// Returns 1 if a result is wrong, otherwise 7 if the session was interrupted, otherwise 0.
  [[nodiscard]] int exit_code() const;
};

/// Computes the figures of all cells except bare kernels. `wrong` is indexed by cell. `link_gbit` is the rate of one
/// rank's link in Gbit/s, used if there are several nodes. `interrupted` is the stop reason of cells that have not
/// ended.
std::vector<CellResult> results_of(const std::vector<Cell>& cells, const Schedule& schedule,
                                   const std::vector<std::optional<std::uint64_t>>& wrong, const World& world,
                                   std::optional<double> link_gbit, const std::string& interrupted);

/// Returns the three variants of a search for crossovers: copies of `base` that each use one algorithm for all sizes.
/// The algorithms are doubling, rabenseifner and ring. For operations on shares, the first variant uses the direct
/// exchange and the other two use the ring.
std::vector<Variant> crossover_variants(const Variant& base);
/// Returns the best thresholds from the results of a session with crossover_variants(). Ignores cells without samples.
comm::Thresholds crossovers_of(const std::vector<CellResult>& cells);

}  // namespace hvd::bench::coll
