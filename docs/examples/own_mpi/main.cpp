// A program that calls MPI itself and has two engines: one over all ranks, one over the even or the odd ranks.
//   mpirun -np 4 ./own_mpi
#include <mpi.h>

#include <array>
#include <cstdio>
#include <vector>

#include "engine/base/error.h"
#include "engine/comm/mpi/from_communicator.h"
#include "engine/runtime/engine.h"

namespace {

void run(int rank, MPI_Comm parity) {
  hvd::Engine world(hvd::comm::make_mpi(MPI_COMM_WORLD), {});
  hvd::Engine half(hvd::comm::make_mpi(parity), {});

  // Ranks may have different numbers of rows. The engine works while this thread continues.
  const std::vector<float> rows(static_cast<std::size_t>(rank + 1) * 2, static_cast<float>(rank));
  const std::array<std::int64_t, 2> shape{rank + 1, 2};
  const hvd::Ticket gathered = world.all_gather_async("rows", rows.data(), shape, hvd::DataType::kF32);
  double value = rank;
  const hvd::Ticket summed = half.all_reduce_async("value", &value, {}, hvd::DataType::kF64, hvd::ReduceOp::kSum);

  // Calls of the program's own, at the same time as the engines': only if MPI takes calls from several threads.
  int largest = rank;
  if (hvd::comm::mpi_threads_supported()) {
    MPI_Allreduce(MPI_IN_PLACE, &largest, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  } else {
    world.all_reduce(&largest, 1, hvd::DataType::kI32, hvd::ReduceOp::kMax);
  }

  const hvd::Output all = world.take_output(gathered);
  half.wait(summed);
  if (rank == 0) {
    std::printf("%d rows of %zu ranks, sum over the even ones %g, last rank %d\n",
                static_cast<int>(all.bytes.size() / (2 * sizeof(float))), all.rows.size(), value, largest);
  }
}

}  // namespace

int main(int argc, char** argv) {
  int provided = MPI_THREAD_SINGLE;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  int status = 0;
  try {
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm parity = MPI_COMM_NULL;
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &parity);
    run(rank, parity);
    MPI_Comm_free(&parity);            // no engine is left
  } catch (const hvd::Error& error) {  // names the rank, the tensor and what to do
    std::fprintf(stderr, "own_mpi: %s\n", error.what());
    status = hvd::exit_code(error.code());
    MPI_Abort(MPI_COMM_WORLD, status);
  }
  MPI_Finalize();
  return status;
}
