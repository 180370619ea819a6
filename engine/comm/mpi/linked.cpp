// For programs that link MPI themselves. table.cpp, compiled into the same library, is the table of their MPI.
#include "engine/comm/mpi/from_communicator.h"
#include "engine/comm/mpi/from_handle.h"
#include "engine/comm/mpi/handles.h"

namespace hvd::comm {

std::unique_ptr<Communicator> make_mpi(MPI_Comm ranks, const CommOptions& options, const Patience& patience) {
  return make_mpi_of(handle_of(ranks), options, patience);
}

}  // namespace hvd::comm
