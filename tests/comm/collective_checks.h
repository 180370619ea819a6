// Checks that run over any Communicator, with ranks as threads (loopback) or processes (MPI). Each returns an empty
// string or a description of the fault. Every rank of the world must make the same calls.
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

/// All-reduces known pseudo-random data twice and compares with an independent serial computation in higher precision.
/// Also checks that all ranks and both runs have the same bits, and that nothing beyond `count` changed.
std::string check_all_reduce(comm::Communicator& communicator, const AllReduceCase& one);

/// Runs every type and operation over awkward counts, plain and registered, in place and out of place.
std::string check_all_reduce_matrix(comm::Communicator& communicator, bool large);

/// Runs barrier, bits, gather (unequal lengths, longer than a slot) and broadcasts from every root.
std::string check_control_plane(comm::Communicator& communicator);

std::string check_data_broadcast(comm::Communicator& communicator, std::size_t bytes);

}  // namespace hvd::test
