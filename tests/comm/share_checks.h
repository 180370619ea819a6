// Checks of reduce-scatter, all-gather and all-to-all that run over any Communicator, as threads or as processes. Each
// returns an empty string or what is wrong; every rank of the world makes the same calls, and all learn of a fault.
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

/// Each runs twice on known data and compares with a naive reference, the two runs with each other, and looks for
/// writes past the end and into the input.
std::string check_reduce_scatter(comm::Communicator& communicator, const ShareCase& one);
std::string check_all_gather(comm::Communicator& communicator, const ShareCase& one);
/// `counts[r]` scales what rank r sends; every pair differs.
std::string check_all_to_all(comm::Communicator& communicator, const ShareCase& one);

/// The own share has the bits that an all-reduce of the same input has there.
std::string check_same_bits_as_all_reduce(comm::Communicator& communicator, const ShareCase& one);

/// Every type and operation over equal, ragged, zero and one-sided shares, plain and registered, in place and not.
std::string check_share_matrix(comm::Communicator& communicator);

}  // namespace hvd::test
