#include "bench/coll/cells.h"

#include <fmt/format.h>

#include <algorithm>

#include "bench/coll/operation.h"
#include "bench/measure/units.h"
#include "engine/base/align.h"
#include "engine/base/error.h"

namespace hvd::bench::coll {
namespace {

std::vector<bool> places(MeasuredCollective collective, Place wanted) {
  std::vector<bool> in_place;
  if (wanted != Place::kInPlace && has_out_of_place(collective)) in_place.push_back(false);
  if (wanted != Place::kOutOfPlace && has_in_place(collective)) in_place.push_back(true);
  return in_place;
}

/// Returns each problem only once, although several sizes may be rounded to the same problem.
std::vector<Problem> make_problems(const CollOptions& options, int ranks) {
  std::vector<Problem> problems;
  const auto add = [&](const Problem& problem) {
    if (std::find(problems.begin(), problems.end(), problem) == problems.end()) problems.push_back(problem);
  };
  for (const MeasuredCollective collective : options.collectives) {
    for (const DataType type : options.types) {
      for (const ReduceOp op : options.ops) {
        for (const std::size_t bytes : options.sizes) {
          for (const bool in_place : places(collective, options.place)) {
            add(problem_of(collective, bytes, type, op, {in_place, options.ragged}, ranks));
          }
        }
      }
    }
  }
  return problems;
}

std::size_t largest_footprint(const std::vector<Cell>& cells, int ranks) {
  std::size_t largest = kBufferAlignment;
  for (const Cell& cell : cells) {
    const Problem shape = cell.variant == kBare ? bare_shape(cell.problem, ranks) : cell.problem;
    largest = std::max(largest, shape.footprint(ranks));
  }
  return largest;
}

}  // namespace

bool from_plane(const CollOptions& options, const Variant& variant) { return options.gpus || variant.registered; }

std::vector<Cell> make_cells(const CollOptions& options, int ranks, bool one_memory) {
  std::vector<Cell> cells;
  const std::vector<Problem> problems = make_problems(options, ranks);
  if (problems.empty()) {
    throw Error(Errc::kInvalidArgument,
                fmt::format("coll: {} has no form {}; leave --place out", name(options.collectives.front()),
                            options.place == Place::kInPlace ? "in place" : "out of place"));
  }
  const bool lacking = options.gpus && std::any_of(problems.begin(), problems.end(), [](const Problem& problem) {
                         return reduces(problem.collective) && problem.type == DataType::kI16;
                       });
  if (lacking) {
    throw Error(Errc::kInvalidArgument, "coll: NCCL has no reduction of int16; name other types with -d");
  }
  for (std::size_t group = 0; group < problems.size(); ++group) {
    const Problem& problem = problems[group];
    for (int variant = 0; variant < static_cast<int>(options.variants.size()); ++variant) {
      cells.push_back({problem, variant, group});
    }
    const bool has_bare = options.bound && one_memory && !options.gpus;
    const bool moves = problem.collective != MeasuredCollective::kBarrier && (ranks > 1 || !problem.in_place);
    if (has_bare && moves) cells.push_back({problem, kBare, group});
  }
  return cells;
}

std::size_t arena_bytes(const CollOptions& options, const std::vector<Cell>& cells, int ranks,
                        std::size_t cache_bytes) {
  constexpr std::size_t kPage = 4096;
  const std::size_t cold = options.warm ? 0 : 2 * cache_bytes;
  // The buffers of successive operations cover at least `cold` bytes before an operation gets the first buffers again.
  return align_up(cold + largest_footprint(cells, ranks), kPage);
}

std::size_t arena_count(const CollOptions& options, const std::vector<Cell>& cells) {
  const auto of_planes =
      static_cast<std::size_t>(std::count_if(options.variants.begin(), options.variants.end(),
                                             [&](const Variant& variant) { return from_plane(options, variant); }));
  const bool plain = of_planes < options.variants.size() ||
                     std::any_of(cells.begin(), cells.end(), [](const Cell& cell) { return cell.variant == kBare; });
  return of_planes + (plain ? 1 : 0);
}

std::string memory_objection(const CollOptions& options, const std::vector<Cell>& cells, int ranks,
                             std::size_t cache_bytes, const MemoryBudget& budget) {
  const std::size_t arenas = budget.arenas * static_cast<std::size_t>(budget.ranks);
  if (budget.free_bytes == 0 || arenas == 0) return {};
  const std::size_t arena = arena_bytes(options, cells, ranks, cache_bytes);
  const std::size_t available = budget.free_bytes / arenas;
  if (arena <= available) return {};
  const std::size_t cold = options.warm ? 0 : 2 * cache_bytes;
  const std::size_t largest = std::max<std::size_t>(1, options.sizes.empty() ? 1 : options.sizes.back());
  const std::size_t smallest = std::max<std::size_t>(1, options.sizes.empty() ? 1 : options.sizes.front());
  const auto buffers_per_byte =
      std::max<std::size_t>(1, align_up(largest_footprint(cells, ranks), largest) / largest);  // 2: input and output
  const auto largest_size = [&](std::size_t kept_cold) {
    return available > kept_cold ? std::min(largest, (available - kept_cold) / buffers_per_byte) : 0;
  };
  const bool sweep = options.model.empty();
  const std::size_t least = std::max(sweep ? smallest : largest, kBufferAlignment);
  const std::size_t fits_cold = largest_size(cold);
  const std::size_t fits_warm = largest_size(0);
  const bool keep_cold = fits_cold >= least;
  const std::string warm = options.warm ? "" : " with --warm (which keeps buffers in caches)";
  std::string advice;
  if (!keep_cold && fits_warm < least) {
    advice = sweep ? fmt::format("a smaller -b: up to {} bytes would fit{}", fits_warm, warm)
                   : fmt::format("instead of {} -e {}, which would fit{}",
                                 options.replay_file.empty() ? "--from-model" : "--from-replay", fits_warm, warm);
    advice = "use fewer ranks on this host, or " + advice;
  } else if (!sweep) {
    advice = "--warm would fit (it keeps buffers in caches)";
  } else {
    advice = fmt::format("-e {}{} would fit", keep_cold ? fits_cold : fits_warm, keep_cold ? "" : warm);
  }
  return fmt::format("coll: these sizes need {} buffers of {} on {} rank(s) of {}, and {} is free; {}", arenas,
                     bytes_text(static_cast<double>(arena)), budget.ranks, budget.place,
                     bytes_text(static_cast<double>(budget.free_bytes)), advice);
}

}  // namespace hvd::bench::coll
