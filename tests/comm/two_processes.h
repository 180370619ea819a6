// Two ranks as forked processes of a test that has not touched CUDA itself: a process that has cannot be forked into
// one that uses it. They exchange messages over a socket.
#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <string>

#include "tests/comm/shared_gpu.h"

namespace hvd::test {

/// What a rank does; returns its outcome as text.
using RankBody = std::function<std::string(int rank, const Exchange& exchange)>;

/// [rank] what `body` returned, "error: ..." for what it threw, "ended by signal 9" and the like if the process did not
/// come to its end. A process that runs longer than `patience` is killed.
std::array<std::string, 2> run_two_processes(const RankBody& body, std::chrono::milliseconds patience);

}  // namespace hvd::test
