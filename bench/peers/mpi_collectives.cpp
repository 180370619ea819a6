// Measures the collectives of an MPI. scripts/maintain/peers compiles this program with each MPI's own wrapper.
#include <mpi.h>

#include "bench/peers/collectives.h"

namespace {

using hvd::peers::Call;
using hvd::peers::Collective;

int call_mpi(const Call& call) {
  const auto count = static_cast<int>(call.count);
  const auto share = static_cast<int>(call.share);
  // NOLINTNEXTLINE(performance-no-int-to-ptr): as MPI defines MPI_IN_PLACE
  const void* in = call.in == call.out ? MPI_IN_PLACE : call.in;
  switch (call.operation) {
    case Collective::kAllReduce: return MPI_Allreduce(in, call.out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    case Collective::kReduceScatter:
      return MPI_Reduce_scatter_block(in, call.out, share, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    case Collective::kAllGather: return MPI_Allgather(in, share, MPI_FLOAT, call.out, share, MPI_FLOAT, MPI_COMM_WORLD);
    case Collective::kAllToAll: return MPI_Alltoall(in, share, MPI_FLOAT, call.out, share, MPI_FLOAT, MPI_COMM_WORLD);
    case Collective::kBroadcast: return MPI_Bcast(call.out, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
    case Collective::kBarrier: break;
  }
  return MPI_Barrier(MPI_COMM_WORLD);
}

bool perform(void* /*self*/, const Call* call) { return call_mpi(*call) == MPI_SUCCESS; }

}  // namespace

int main(int argc, char** argv) {
  if (MPI_Init(&argc, &argv) != MPI_SUCCESS) return 2;
  int rank = 0;
  int size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const int code = hvd::peers::measure_collectives({rank, size, nullptr, nullptr, perform}, argc, argv);
  if (code == 2) MPI_Abort(MPI_COMM_WORLD, code);  // other ranks may wait inside a collective
  MPI_Finalize();
  return code;
}
