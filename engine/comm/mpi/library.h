// The MPI of this process, for the code that calls it.
#pragma once

#include "engine/comm/mpi/table.h"
#include "engine/comm/mpi_library.h"

namespace hvd::comm {

/// Returns the functions of MPI. If none has been loaded, first calls load_mpi({}). Errors: those of load_mpi(). Any
/// thread may call this function; MpiEnvironment says which may call MPI.
const HvdMpiTable& mpi();

}  // namespace hvd::comm
