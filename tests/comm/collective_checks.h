// Checks that run over any Communicator, with ranks as threads (loopback) or processes (MPI). Each check
// returns an empty string or a description of the fault. Every rank of the world must make the same calls.
#pragma once

#include <cstddef>
#include <string>

#include "engine/comm/communicator.h"
#include "tests/comm/guarded_buffer.h"

namespace hvd::test {

struct AllReduceCase {
  std::size_t count;
  DataType dtype;
  ReduceOp op;
  Memory memory;
  bool out_of_place = false;
  [[nodiscard]] std::string text() const;
};

/// All-reduces known pseudo-random data twice and compares the result with a serial computation in higher precision.
/// Also checks that all ranks and both runs get the same bits, and that no memory beyond `count` elements changed.
std::string check_all_reduce(comm::Communicator& communicator, const AllReduceCase& c);

/// Runs every type and operation with 0 to 20011 elements, in plain and registered memory, in place and out of place.
std::string check_all_reduce_matrix(comm::Communicator& communicator, bool large);

/// Runs a barrier, all_reduce_bits, gathers of unequal lengths (one is longer than a slot), and broadcasts from each
/// root.
std::string check_control_plane(comm::Communicator& communicator);

std::string check_data_broadcast(comm::Communicator& communicator, std::size_t bytes);

}  // namespace hvd::test
