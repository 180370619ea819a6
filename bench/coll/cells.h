// The list of cells of a session: every problem with every variant, and its bare kernel. All ranks make the same list
// from the same options, and name a cell by its index. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "bench/coll/options.h"

namespace hvd::bench::coll {

/// Index of the "variant" of a bare kernel.
inline constexpr int kBare = -1;

struct Cell {
  Problem problem;
  int variant = 0;        ///< into CollOptions::variants, or kBare
  std::size_t group = 0;  ///< cells of one problem, which are compared with one another
};

/// Sorted by collective, type, reduction, size, place, variant. A bare kernel comes last in its group. There is none
/// for a barrier, in a world of several nodes, on GPUs, and in place in a world of 1, where nothing has to move.
/// Errors: invalid_argument where the options leave nothing to measure (all_to_all in place), and for a reduction that
/// NCCL lacks.
std::vector<Cell> make_cells(const CollOptions& options, int ranks, bool one_memory);

/// Whether the buffers of a variant come from its data plane: on GPUs all do.
bool from_plane(const CollOptions& options, const Variant& variant);

/// Bytes of one arena: at least `cache_bytes` twice, unless `options` want warm caches, and the largest cell.
std::size_t arena_bytes(const CollOptions& options, const std::vector<Cell>& cells, int ranks, std::size_t cache_bytes);
/// Arenas of one rank: one for each variant that has its plane's, and one of plain memory if any cell needs it.
std::size_t arena_count(const CollOptions& options, const std::vector<Cell>& cells);

/// Memory that ranks share: of a host, of its /dev/shm, or of a GPU.
struct MemoryBudget {
  std::string place;           ///< "this host"
  int ranks = 1;               ///< that share it
  std::size_t arenas = 0;      ///< of each rank, in this memory
  std::size_t free_bytes = 0;  ///< 0: unknown
};

/// Why the arenas do not fit into `budget`, with the -e or another change that would help; empty: they fit, or how much
/// is free is unknown. `ranks`: of the whole world.
std::string memory_objection(const CollOptions& options, const std::vector<Cell>& cells, int ranks,
                             std::size_t cache_bytes, const MemoryBudget& budget);

}  // namespace hvd::bench::coll
