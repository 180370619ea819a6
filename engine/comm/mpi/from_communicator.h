// For programs that call MPI themselves, which link hvd::mpi: makes a Communicator over ranks that the program chooses.
// The caller owns `ranks`, and may free it once the function has returned: the engine keeps a duplicate.
#pragma once

#include <mpi.h>

#include <memory>

#include "engine/comm/communicator.h"

namespace hvd::comm {

/// Collective over `ranks`; existing engines of this process may run during the call. The program must have started MPI
/// with at least MPI_THREAD_SERIALIZED, and must finalise MPI itself after the Communicator is destroyed. Concurrent
/// calls can deadlock: see make_mpi() in communicator.h. Errors: invalid_argument for MPI_COMM_NULL; timeout if not all
/// ranks call make_mpi() within `patience`; backend if MPI fails.
std::unique_ptr<Communicator> make_mpi(MPI_Comm ranks, const CommOptions& options = {},
                                       const Patience& patience = kMeetPatience);

/// Returns true if the program may call MPI while an engine exists (MPI_THREAD_MULTIPLE). Otherwise it may call MPI
/// only before it makes its first engine and after it destroys its last engine. Call after MPI has started. Any thread.
bool mpi_threads_supported();

}  // namespace hvd::comm
