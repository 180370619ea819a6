// Measures the collectives of one library. The rules are the same for every library: this engine, MPIs, oneCCL, Gloo.
//
// Each library has a program that starts its ranks, fills in a Library, and calls measure(). All ranks run on one host
// and synchronise through a file that they map, so that the measurement does not use the library's barrier or
// reduction. The structs have a C layout, for programs in other languages. One thread uses measure() and the Library.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hvd::peers {

enum class Collective : std::int32_t { kAllReduce, kReduceScatter, kAllGather, kAllToAll, kBroadcast, kBarrier };
enum class Type : std::int32_t { kF32, kF64, kI32, kI64 };

/// One collective call. Reductions are sums; a broadcast comes from rank 0.
/// Shapes (`count` is the sum of `counts`): all_reduce: in and out (count); reduce_scatter: in (count), out
/// (counts[rank]); all_gather: in (counts[rank]), out (count); all_to_all: in (count), of which rank r gets counts[r],
/// and out (size * counts[rank]); broadcast: out (count); barrier: no buffers.
struct Call {
  Collective operation;
  Type type;
  bool in_place;
  void* out;
  const void* in;  ///< with `in_place`, equal to `out`, or for all_gather to the rank's share of `out`
  std::size_t count;
  const std::size_t* counts;  ///< [rank]; two counts differ by at most 1
  const std::size_t* starts;  ///< [rank]; sums of the counts of lower ranks
};

enum class Answer : std::int32_t { kDone, kUnsupported, kFailed };

struct Library {
  std::int32_t rank;
  std::int32_t size;
  void* self;
  /// Returns the memory with which the library works fastest. The memory must live until measure() has returned. All
  /// ranks call the function together. If the function is null, ordinary memory is used.
  void* (*allocate)(void* self, std::size_t bytes);
  /// Performs the call and returns when the result is complete. If one rank answers kUnsupported, all must do so.
  Answer (*perform)(void* self, const Call* call);
};

/// Arguments: --shared-page FILE --samples N --cell-seconds S --pool-bytes B --seed S [--corrupt] CELL...
/// CELL: OPERATION/TYPE/BYTES/in|out/CALLS. Rank 0 prints a line of JSON per cell, in an order drawn from the seed.
/// --corrupt changes one element of the first result of each cell, and the check must then report this element.
/// Returns 0; 1 if a result was wrong; 2 after an error, whose text is printed.
int measure(const Library& library, int argc, const char* const* argv);

}  // namespace hvd::peers

extern "C" int hvd_measure_collectives(const hvd::peers::Library* library, int argc, const char* const* argv);
