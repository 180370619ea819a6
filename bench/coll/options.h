// What the user asked of `hvd_bench coll`. Plain data; parsed by bench/cli/coll_command.h, consumed by session.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/coll/problem.h"
#include "engine/comm/communicator.h"

namespace hvd::bench::coll {

/// Which buffers are measured.
enum class Place : std::uint8_t { kBoth, kOutOfPlace, kInPlace };

/// nccl-tests' -z: how the operations of one sample follow one another.
enum class Pace : std::uint8_t {
  kStream = 0,         ///< one after the other; the end of the last is waited for
  kBarrierInside = 1,  ///< each is waited for, then a barrier, inside the measured time
  kWaitEach = 2,       ///< each is waited for (on a host plane a call returns when its work is done, so as kStream)
  kBarrierOutside = 3  ///< one operation a sample
};

/// One side of a comparison: a communicator of its own.
struct Variant {
  std::string name;  ///< "algorithm=ring"; empty where nothing is compared
  comm::CommOptions comm;
  bool registered = true;  ///< buffers come from DataPlane::allocate(); on GPUs: and NCCL registers them
};

// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): one per process; grouped by meaning, not by size
struct CollOptions {
  std::vector<Collective> collectives{Collective::kAllReduce};
  std::vector<std::size_t> sizes;  ///< bytes, ascending
  std::vector<DataType> types{DataType::kF32};
  std::vector<ReduceOp> ops{ReduceOp::kSum};
  Place place = Place::kBoth;
  bool gpus = false;                         ///< buffers in memory of GPUs, one a rank, and operations by NCCL
  std::vector<Variant> variants{Variant{}};  ///< at least one; the first is what the others are compared with
  std::size_t least_samples = 20;
  std::size_t warmup = 5;
  double target_interval = 0.02;  ///< half width of the median's interval, relative
  double max_seconds = 5;         ///< of one cell
  Pace pace = Pace::kStream;
  /// nccl-tests' -G: the operations of a sample are captured in a CUDA graph, which is launched so often; 0: no graph.
  /// Needs `gpus`, `warm`, Pace::kStream and operations that the host takes no part in.
  std::uint32_t graph_launches = 0;
  std::size_t checks = 1;            ///< passes of the check of each cell
  bool warm = false;                 ///< buffers may stay in caches
  bool bound = true;                 ///< measure the bare kernel beside each cell
  std::optional<double> link_gbit;   ///< rate of one rank's link, Gbit/s, of a world that is not one host
  std::uint64_t seed = 1;            ///< of the order of cells
  bool ragged = false;               ///< the ranks' shares differ, where an operation has shares
  std::string model;                 ///< --from-model; empty: sizes are the sweep's
  std::vector<std::size_t> repeats;  ///< [size], with a model: how many of its buckets have this size
  /// Find where `auto` should change its algorithm between hosts: variants are those of crossover_variants().
  bool find_crossovers = false;
  /// Crossovers are kept there, or taken from there by variants whose thresholds are the default ones; empty: nowhere.
  std::string tuning_folder;
  std::string json_file, csv_file;
  std::string db_file;  ///< --db; empty: nothing is stored
};

}  // namespace hvd::bench::coll
