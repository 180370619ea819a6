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

/// Why `ranks_here` ranks that share `free_bytes`, of a host or of a GPU, cannot have their arenas, with the -e that
/// would fit; empty: they can, or `free_bytes` is 0 (unknown).
std::string memory_objection(const CollOptions& options, const std::vector<Cell>& cells, int ranks, int ranks_here,
                             std::size_t cache_bytes, std::size_t free_bytes);

}  // namespace hvd::bench::coll
