// Makes a loopback world in which each rank's transport is wrapped, for tests that inject faults.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/comm/transport.h"

namespace hvd::comm {

/// Returns the transport for `rank`. The returned transport owns `inner`.
using WrapTransport = std::function<std::unique_ptr<Transport>(int rank, std::unique_ptr<Transport> inner)>;

/// Like make_loopback(), with `wrap` applied to every transport. Errors: those of make_loopback().
std::vector<std::unique_ptr<Communicator>> make_wrapped_loopback(int size, const CommOptions& options,
                                                                 int ranks_per_node, const WrapTransport& wrap);

}  // namespace hvd::comm
