// For programs that link MPI themselves. table.cpp, compiled into the same library, is the table of their MPI.
#include <cstring>

#include "engine/comm/mpi/from_communicator.h"
#include "engine/comm/mpi/from_handle.h"

namespace hvd::comm {

std::unique_ptr<Communicator> make_mpi(MPI_Comm ranks, const CommOptions& options, const Patience& patience) {
  HvdMpiHandle handle = 0;
  std::memcpy(&handle, &ranks, sizeof ranks);
  return make_mpi_of(handle, options, patience);
}

}  // namespace hvd::comm
