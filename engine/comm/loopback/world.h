// A loopback world whose ranks' transports may be wrapped, for tests that inject faults. Used where a world is made.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/comm/transport.h"

namespace hvd::comm {

/// Returns the transport that `rank` uses, which owns `inner`.
using WrapTransport = std::function<std::unique_ptr<Transport>(int rank, std::unique_ptr<Transport> inner)>;

/// As make_loopback(), with every transport wrapped. Errors: as make_loopback().
std::vector<std::unique_ptr<Communicator>> make_wrapped_loopback(int size, const CommOptions& options,
                                                                 int ranks_per_node, const WrapTransport& wrap);

}  // namespace hvd::comm
