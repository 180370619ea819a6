// make_mpi() over a communicator that is given as a handle of table.h.
#pragma once

#include <memory>

#include "engine/comm/communicator.h"
#include "engine/comm/mpi/table.h"

namespace hvd::comm {

/// As make_mpi() in from_communicator.h. `ranks` must be of the MPI that this process has loaded or linked.
std::unique_ptr<Communicator> make_mpi_of(HvdMpiHandle ranks, const CommOptions& options, const Patience& patience);

}  // namespace hvd::comm
