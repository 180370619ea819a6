// Measures the collectives of one library. The rules are the same for every library: this engine, MPIs, oneCCL, Gloo.
//
// Each library has a program that starts its ranks, fills in a Library, and calls measure_collectives(). All ranks run
// on one host and synchronise through a file that they map, so that the measurement does not use the library's barrier
// or reduction. The structs have a C layout, for programs in other languages. One thread uses the Library.
#pragma once

#include <cstddef>
#include <cstdint>

#include "bench/measure/collective.h"

namespace hvd::peers {

using Collective = bench::MeasuredCollective;

/// One collective call on fp32 elements. Reductions are sums; a broadcast comes from rank 0.
/// Shapes, with count = size * share except for all_reduce and broadcast: all_reduce and broadcast: out (count), in
/// place, so `in` equals `out`; reduce_scatter: in (count), out (share); all_gather: in (share), out (count);
/// all_to_all: in and out (count), of which each rank has one share; barrier: no buffers.
struct Call {
  Collective operation;
  float* out;
  float* in;
  std::size_t count;
  std::size_t share;
};

struct Library {
  std::int32_t rank;
  std::int32_t size;
  void* self;
  /// Returns the memory with which the library works fastest. The memory must live until measure_collectives() has
  /// returned. All ranks call the function together. If the function is null, ordinary memory is used.
  void* (*allocate)(void* self, std::size_t bytes);
  /// Performs the call and returns when the result is complete. Returns false or throws after an error.
  bool (*perform)(void* self, const Call* call);
};

/// Arguments: FILE SAMPLES CELL_SECONDS POOL_BYTES exact|corrupt CELL..., where FILE is empty and shared by the ranks
/// and CELL is OPERATION/fp32/BYTES/in|out/CALLS. Rank 0 prints a line of JSON per cell. "corrupt" changes one element
/// of the first result of each cell, which the check must then report. Returns 0; 1 if a result was wrong; 2 after an
/// error, whose text is printed.
extern "C" int measure_collectives(const Library& library, int argc, const char* const* argv);

}  // namespace hvd::peers
