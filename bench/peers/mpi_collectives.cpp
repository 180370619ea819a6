// Measures the collectives of an MPI. scripts/maintain/coll_peers compiles this program with each MPI's own wrapper.
#include <mpi.h>

#include <climits>
#include <cstdio>
#include <vector>

#include "bench/peers/collectives.h"

namespace {

using hvd::peers::Answer;
using hvd::peers::Call;
using hvd::peers::Collective;
using hvd::peers::Library;
using hvd::peers::Type;

/// Counts and displacements as ints, which MPI requires; take_counts() fills them before a call with uneven shares.
struct World {
  int rank = 0;
  int size = 1;
  std::vector<int> counts, starts, mine, places;
};

MPI_Datatype mpi_type(Type type) {
  switch (type) {
    case Type::kF32: return MPI_FLOAT;
    case Type::kF64: return MPI_DOUBLE;
    case Type::kI32: return MPI_INT32_T;
    case Type::kI64: break;
  }
  return MPI_INT64_T;
}

void take_counts(World& world, const Call& call) {
  for (int r = 0; r < world.size; ++r) {
    world.counts[r] = static_cast<int>(call.counts[r]);
    world.starts[r] = static_cast<int>(call.starts[r]);
    world.mine[r] = static_cast<int>(call.counts[world.rank]);
    world.places[r] = r * world.mine[r];
  }
}

const void* input_of(const Call& call) {
  return call.in_place ? MPI_IN_PLACE : call.in;  // NOLINT(performance-no-int-to-ptr): as MPI defines MPI_IN_PLACE
}

int call_mpi(World& world, const Call& call) {
  const MPI_Datatype type = mpi_type(call.type);
  const bool even = call.count % static_cast<std::size_t>(world.size) == 0;
  const int share = static_cast<int>(call.counts[world.rank]);
  const auto count = static_cast<int>(call.count);
  switch (call.operation) {
    case Collective::kAllReduce: return MPI_Allreduce(input_of(call), call.out, count, type, MPI_SUM, MPI_COMM_WORLD);
    case Collective::kReduceScatter:
      if (even) return MPI_Reduce_scatter_block(call.in, call.out, share, type, MPI_SUM, MPI_COMM_WORLD);
      take_counts(world, call);
      return MPI_Reduce_scatter(call.in, call.out, world.counts.data(), type, MPI_SUM, MPI_COMM_WORLD);
    case Collective::kAllGather:
      if (even) return MPI_Allgather(input_of(call), share, type, call.out, share, type, MPI_COMM_WORLD);
      take_counts(world, call);
      return MPI_Allgatherv(input_of(call), share, type, call.out, world.counts.data(), world.starts.data(), type,
                            MPI_COMM_WORLD);
    case Collective::kAllToAll:
      if (even) return MPI_Alltoall(call.in, share, type, call.out, share, type, MPI_COMM_WORLD);
      take_counts(world, call);
      return MPI_Alltoallv(call.in, world.counts.data(), world.starts.data(), type, call.out, world.mine.data(),
                           world.places.data(), type, MPI_COMM_WORLD);
    case Collective::kBroadcast: return MPI_Bcast(call.out, count, type, 0, MPI_COMM_WORLD);
    case Collective::kBarrier: break;
  }
  return MPI_Barrier(MPI_COMM_WORLD);
}

Answer perform(void* self, const Call* call) {
  if (call->count > INT_MAX) return Answer::kUnsupported;
  return call_mpi(*static_cast<World*>(self), *call) == MPI_SUCCESS ? Answer::kDone : Answer::kFailed;
}

}  // namespace

int main(int argc, char** argv) {
  if (MPI_Init(&argc, &argv) != MPI_SUCCESS) return 2;
  World world;
  MPI_Comm_rank(MPI_COMM_WORLD, &world.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world.size);
  for (auto* list : {&world.counts, &world.starts, &world.mine, &world.places}) list->resize(world.size);
  const Library library{world.rank, world.size, &world, nullptr, perform};
  const int code = hvd::peers::measure(library, argc, argv);
  if (code == 2) MPI_Abort(MPI_COMM_WORLD, code);  // other ranks may wait inside a collective
  MPI_Finalize();
  return code;
}
