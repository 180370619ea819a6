// For programs with MPI calls of their own: a Communicator over ranks that the program has chosen. Only where the build
// has MPI. The caller owns `ranks`, which may be freed once the function has returned: the engine has a duplicate.
#pragma once

#include <mpi.h>

#include <memory>

#include "engine/comm/communicator.h"

namespace hvd::comm {

/// Collective over `ranks`; engines of this process that exist already may be at work meanwhile. The program must have
/// started MPI with MPI_THREAD_SERIALIZED at least, and ends it itself, after the Communicator.
/// Concurrent calls can deadlock: see make_mpi() in communicator.h.
/// Errors: invalid_argument for MPI_COMM_NULL; timeout if not all ranks come within `patience`; backend when MPI fails.
std::unique_ptr<Communicator> make_mpi(MPI_Comm ranks, const CommOptions& options = {},
                                       const Patience& patience = kMeetPatience);

/// Returns true if the program may call MPI while an engine lives (MPI_THREAD_MULTIPLE). Otherwise it may call MPI only
/// before its first engine and after its last. Call it after MPI has started. Any thread.
bool mpi_threads_supported();

}  // namespace hvd::comm
