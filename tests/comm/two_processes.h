// Runs two ranks as forked processes. The test must not use CUDA before the fork, because CUDA does not work in forked
// children of a process that has used it. The ranks exchange messages over a socket.
#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <string>

#include "tests/comm/shared_gpu.h"

namespace hvd::test {

/// The body of a rank; returns its outcome as text.
using RankBody = std::function<std::string(int rank, const Exchange& exchange)>;

/// Returns for each rank the result of `body`, "error: ..." if `body` threw, or text such as "ended by signal 9" if the
/// process ended early. A process that runs longer than `patience` is killed.
std::array<std::string, 2> run_two_processes(const RankBody& body, std::chrono::milliseconds patience);

}  // namespace hvd::test
