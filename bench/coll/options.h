// The options of `hvd_bench coll`. bench/cli/coll/command.h parses them, session.h uses them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bench/coll/problem.h"
#include "bench/world/option_table.h"
#include "bench/world/ranks.h"
#include "bench/world/settings.h"
#include "engine/base/deadline.h"
#include "engine/comm/communicator.h"

namespace hvd::bench::coll {

/// The forms of an operation that are measured: in place, out of place, or both.
enum class Place : std::uint8_t { kBoth, kOutOfPlace, kInPlace };

/// Decides when the operations of one sample begin. The values are those of nccl-tests' option -z.
enum class Pace : std::uint8_t {
  kStream = 0,         ///< the rank starts all operations and then waits for the end of the last one
  kBarrierInside = 1,  ///< the rank waits for each operation, and a barrier follows inside the measured time
  kWaitEach = 2,       ///< the rank waits for each operation; same as kStream on a host plane, where every call waits
  kBarrierOutside = 3  ///< each sample has only one operation; the barrier before the sample is not timed
};

/// One of the communicators that a session compares.
struct Variant {
  std::string name;  ///< such as "algorithm=ring"; empty if the session has only one variant
  comm::CommOptions comm;
  bool registered = true;  ///< buffers come from DataPlane::allocate(), and on GPUs NCCL registers them
};

// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): one per process; grouped by meaning, not by size
struct CollOptions : WorldOptions {
  std::vector<MeasuredCollective> collectives{MeasuredCollective::kAllReduce};
  SizeRange range{1024, std::size_t{64} << 20, 0, 4};  ///< of -b, -e, -i and -f
  std::optional<double> bucket_mebibytes;              ///< with --from-model or --from-replay: size of the buckets
  std::vector<std::size_t> sizes;                      ///< bytes, ascending; of the range, or of the model
  std::vector<DataType> types{DataType::kF32};
  std::vector<ReduceOp> ops{ReduceOp::kSum};
  Place place = Place::kBoth;
  Patience deadline{std::chrono::seconds(60), "--deadline-seconds"};  ///< of every wait for another rank
  bool gpus = false;                         ///< buffers are in GPU memory, one GPU per rank, and NCCL operates on them
  std::string compare;                       ///< --compare
  std::vector<Variant> variants{Variant{}};  ///< at least one; the first variant is the base of comparisons
  std::size_t least_samples = 20;
  std::size_t warmup = 5;
  double target_interval = 0.02;  ///< relative half width of the median's interval
  double max_seconds = 5;         ///< maximum seconds spent on one cell
  Pace pace = Pace::kStream;
  /// Number of times that each sample launches a CUDA graph of its operations, as with option -G of nccl-tests. 0: no
  /// graph. Graphs need `gpus`, `warm`, Pace::kStream, and operations in which the host takes no part.
  std::uint32_t graph_launches = 0;
  std::size_t checks = 1;           ///< number of checks of each cell's result
  bool warm = false;                ///< buffers may stay in caches
  bool bound = true;                ///< also measure the bare kernel of each problem
  std::optional<double> link_gbit;  ///< for several hosts: rate of one rank's link in Gbit/s
  std::uint64_t seed = 1;           ///< seed of the random order of cells
  bool ragged = false;              ///< in operations with shares, the ranks have shares of different sizes
  /// Network of --from-model or --from-replay; empty: sizes come from -b, -e, -f and -i.
  std::string model;
  std::string replay_file;           ///< of --from-replay
  std::vector<std::size_t> repeats;  ///< [size], of a network: number of its buckets that have this size
  /// True: finds the sizes at which `auto` should change its algorithm between hosts, with crossover_variants().
  bool find_crossovers = false;
  /// Folder of stored crossovers. Variants with default thresholds load their thresholds from it. Empty: no folder.
  std::string tuning_folder;
  std::string json_file, csv_file;
  std::string db_file;  ///< store of --db; empty: no store
  std::map<std::string, std::string> labels;  ///< --label: stored with the launch, not part of its fingerprint
};

/// The rows set `options`, which must outlive the table. Some letters are those of nccl-tests. --no-db sets nothing.
OptionTable coll_table(CollOptions& options);

/// Returns the options that must be equal on all ranks, because the lists of cells and the buffers depend on them.
RunSettings settings_of(const CollOptions& options);

}  // namespace hvd::bench::coll
