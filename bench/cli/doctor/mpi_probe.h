// Starts MPI in a child process. MPI_Init ends the process that calls it when MPI cannot start (an unknown component,
// no orted in the PATH, a user id without a name), and then the caller could report nothing.
#pragma once

#include <chrono>
#include <string>

#include "engine/comm/mpi_library.h"

namespace hvd::bench {

struct MpiProbe {
  std::string library;  ///< Communicator::library() of a world of one rank; empty if MPI did not start
  std::string path;     ///< the file that was loaded
  std::string failure;  ///< why MPI did not start, on one line; empty if it did
};
/// Loads the MPI of `choice` and starts it. Call while the process has no other threads. Takes some tenths of a second,
/// and `patience` at most.
MpiProbe probe_mpi(const comm::MpiChoice& choice, std::chrono::milliseconds patience);

/// Returns what MPI printed before it ended its process, as one line of at most 800 bytes. Pure.
std::string condensed(const std::string& printed);

}  // namespace hvd::bench
