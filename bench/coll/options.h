// The options of `hvd_bench coll`. Plain data; bench/cli/coll_command.h parses them, session.h uses them.
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

/// Decides when the operations of one sample begin; nccl-tests' -z.
enum class Pace : std::uint8_t {
  kStream = 0,         ///< the rank starts all operations and then waits for the last
  kBarrierInside = 1,  ///< the rank waits for each operation, and a barrier follows inside the measured time
  kWaitEach = 2,       ///< the rank waits for each operation; equals kStream on a host plane, where every call waits
  kBarrierOutside = 3  ///< a sample has one operation
};

/// One side of a comparison, which has its own communicator.
struct Variant {
  std::string name;  ///< "algorithm=ring"; empty if nothing is compared
  comm::CommOptions comm;
  bool registered = true;  ///< buffers come from DataPlane::allocate(), and on GPUs NCCL registers them
};

// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): one per process; grouped by meaning, not by size
struct CollOptions {
  std::vector<Collective> collectives{Collective::kAllReduce};
  std::vector<std::size_t> sizes;  ///< bytes, ascending
  std::vector<DataType> types{DataType::kF32};
  std::vector<ReduceOp> ops{ReduceOp::kSum};
  Place place = Place::kBoth;
  bool gpus = false;                         ///< buffers are in GPU memory, one GPU per rank, and NCCL operates on them
  std::vector<Variant> variants{Variant{}};  ///< at least one; the others are compared with the first
  std::size_t least_samples = 20;
  std::size_t warmup = 5;
  double target_interval = 0.02;  ///< relative half width of the median's interval
  double max_seconds = 5;         ///< maximum seconds of one cell
  Pace pace = Pace::kStream;
  /// nccl-tests' -G: how often a CUDA graph with the operations of a sample is launched; 0: no graph. Needs `gpus`,
  /// `warm`, Pace::kStream, and operations in which the host takes no part.
  std::uint32_t graph_launches = 0;
  std::size_t checks = 1;            ///< how often each cell is checked
  bool warm = false;                 ///< buffers may stay in caches
  bool bound = true;                 ///< measure the bare kernel with each problem
  std::optional<double> link_gbit;   ///< rate of one rank's link in Gbit/s, if there are several hosts
  std::uint64_t seed = 1;            ///< seed for the order of cells
  bool ragged = false;               ///< the ranks' shares differ, if an operation has shares
  std::string model;                 ///< --from-model; empty: sizes come from -b, -e, -f and -i
  std::vector<std::size_t> repeats;  ///< [size], with a model: how many of its buckets have this size
  /// Find the sizes at which `auto` should change its algorithm between hosts. The variants are crossover_variants().
  bool find_crossovers = false;
  /// Folder in which crossovers are stored; variants with default thresholds load them from there. Empty: no folder.
  std::string tuning_folder;
  std::string json_file, csv_file;
  std::string db_file;  ///< --db; empty: no store
};

}  // namespace hvd::bench::coll
