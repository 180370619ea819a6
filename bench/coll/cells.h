// A session's list of cells: every problem with every variant, and the bare kernel of each problem. All ranks make the
// same list from the same options, and identify a cell by its index in the list. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "bench/coll/options.h"

namespace hvd::bench::coll {

/// The value of Cell::variant for a bare kernel.
inline constexpr int kBare = -1;

struct Cell {
  Problem problem;
  int variant = 0;        ///< index into CollOptions::variants, or kBare
  std::size_t group = 0;  ///< number of the problem; cells of the same problem are compared with one another
};

/// Returns cells sorted by collective, type, reduction, size, place and variant. A bare kernel comes last in its group.
/// A problem has no bare kernel if it is a barrier, if buffers are on GPUs, if there are several nodes (`one_memory` is
/// false), or if it is in place in a world of one rank, where no data move.
/// Errors: invalid_argument if the options leave nothing to measure (such as only all_to_all in place), or if they ask
/// for a reduction that NCCL does not have.
std::vector<Cell> make_cells(const CollOptions& options, int ranks, bool one_memory);

/// Returns true if the buffers of a variant come from its data plane. Always true on GPUs.
bool from_plane(const CollOptions& options, const Variant& variant);

/// Returns the bytes of one arena: the buffers of the largest cell, plus 2 * `cache_bytes` if CollOptions::warm is not
/// set.
std::size_t arena_bytes(const CollOptions& options, const std::vector<Cell>& cells, int ranks, std::size_t cache_bytes);
/// Returns the number of arenas per rank: one for each variant with from_plane(), and one in plain memory if other
/// variants or a bare kernel need it.
std::size_t arena_count(const CollOptions& options, const std::vector<Cell>& cells);

/// A memory that one or several ranks use: the memory of a host, the /dev/shm of a host, or the memory of a GPU.
struct MemoryBudget {
  std::string place;           ///< for error texts, such as "this host"
  int ranks = 1;               ///< number of ranks that use the memory
  std::size_t arenas = 0;      ///< number of arenas that each rank has in this memory
  std::size_t free_bytes = 0;  ///< 0: unknown
};

/// If the arenas do not fit into `budget`, returns an error text that proposes a value of -e or another change. Returns
/// an empty text if they fit or if the free memory is unknown. `ranks` is the size of the world.
std::string memory_objection(const CollOptions& options, const std::vector<Cell>& cells, int ranks,
                             std::size_t cache_bytes, const MemoryBudget& budget);

}  // namespace hvd::bench::coll
