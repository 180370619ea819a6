// Checks of reduce-scatter, all-gather and all-to-all over any Communicator, with ranks as threads or processes. Every
// rank of the world must make the same calls. Each check returns an empty string or a description of the fault, on all
// ranks.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "engine/comm/communicator.h"
#include "tests/comm/collective_checks.h"

namespace hvd::test {

struct ShareCase {
  std::vector<std::size_t> counts;  ///< [rank]
  DataType dtype;
  ReduceOp op;
  Memory memory;
  bool in_place;
  [[nodiscard]] std::string text() const;
};

/// Each check runs its operation twice on known data, compares both results with a naive reference and with each other,
/// and looks for writes past the end and into the input.
std::string check_reduce_scatter(comm::Communicator& communicator, const ShareCase& c);
std::string check_all_gather(comm::Communicator& communicator, const ShareCase& c);
/// Rank r sends blocks whose lengths are multiples of counts[r] / 2. The lengths depend on the sender and the receiver.
std::string check_all_to_all(comm::Communicator& communicator, const ShareCase& c);

/// Checks that a rank's share of a reduce-scatter has the same bits as these elements in an all-reduce of the same
/// input.
std::string check_same_bits_as_all_reduce(comm::Communicator& communicator, const ShareCase& c);

/// Runs every type and operation with equal, unequal and zero shares, and with elements on only one rank, in plain and
/// registered memory, in place and out of place.
std::string check_share_matrix(comm::Communicator& communicator);

}  // namespace hvd::test
