// Measures the collectives of one library, by rules that are the same for every library: ours, MPIs, oneCCL, Gloo.
//
// A program per library starts its ranks, fills in a Library, and calls measure(). All ranks run on one host and meet
// in a file that they map, so that no library's own barrier or reduction takes part in the measurement. The struct has
// a C layout, for programs in other languages. measure() and the Library belong to one thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hvd::peers {

enum class Operation : std::int32_t { kAllReduce, kReduceScatter, kAllGather, kAllToAll, kBroadcast, kBarrier };
enum class Type : std::int32_t { kF32, kF64, kI32, kI64 };

/// One collective call: reductions are sums, a broadcast comes from rank 0.
/// Shapes, with `count` the sum of counts: all_reduce in and out (count); reduce_scatter in (count), out
/// (counts[rank]); all_gather in (counts[rank]), out (count); all_to_all in (count), of which rank r gets counts[r],
/// and out (size * counts[rank]); broadcast out (count); barrier none.
struct Call {
  Operation operation;
  Type type;
  bool in_place;
  void* out;
  const void* in;  ///< in place: equal to `out`; for all_gather the rank's share of `out`
  std::size_t count;
  const std::size_t* counts;  ///< [rank]; they differ by 1 at most
  const std::size_t* starts;  ///< [rank], sums of the counts before
};

enum class Answer : std::int32_t { kDone, kUnsupported, kFailed };

struct Library {
  std::int32_t rank;
  std::int32_t size;
  void* self;
  /// Returns memory that the library works on fastest, which lives until measure() has returned. Collective.
  /// A null function: ordinary memory is used.
  void* (*allocate)(void* self, std::size_t bytes);
  /// Performs the call; the result is there when it returns. kUnsupported must be the answer of all ranks.
  Answer (*perform)(void* self, const Call* call);
};

/// Arguments: --meeting FILE --samples N --cell-seconds S --pool-bytes B --seed S [--corrupt] CELL...
/// CELL: OPERATION/TYPE/BYTES/in|out/CALLS. Rank 0 prints a line of JSON per cell, in an order drawn from the seed.
/// --corrupt changes one element of the first result of each cell, which the check must then report.
/// Returns 0, 1 where a result was wrong, 2 after an error, which it prints.
int measure(const Library& library, int argc, const char* const* argv);

}  // namespace hvd::peers

extern "C" int hvd_measure_collectives(const hvd::peers::Library* library, int argc, const char* const* argv);
