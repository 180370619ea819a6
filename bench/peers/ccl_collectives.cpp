// Measures the collectives of oneCCL on host memory. scripts/maintain/coll_peers compiles this program against
// build/peers/oneccl. The MPI that comes with oneCCL starts the ranks.
#include <mpi.h>

#include <cstdio>
#include <oneapi/ccl.hpp>
#include <vector>

#include "bench/peers/collectives.h"

namespace {

using hvd::peers::Answer;
using hvd::peers::Call;
using hvd::peers::Collective;
using hvd::peers::Type;

struct World {
  ccl::communicator communicator;
  int rank;
  int size;
};

ccl::datatype ccl_type(Type type) {
  switch (type) {
    case Type::kF32: return ccl::datatype::float32;
    case Type::kF64: return ccl::datatype::float64;
    case Type::kI32: return ccl::datatype::int32;
    case Type::kI64: break;
  }
  return ccl::datatype::int64;
}

ccl::event call_ccl(World& world, const Call& call) {
  const ccl::datatype type = ccl_type(call.type);
  const std::size_t mine = call.counts[world.rank];
  const std::vector<std::size_t> counts(call.counts, call.counts + world.size);
  const bool even = call.count % counts.size() == 0;
  switch (call.operation) {
    case Collective::kAllReduce:
      return ccl::allreduce(call.in, call.out, call.count, type, ccl::reduction::sum, world.communicator);
    case Collective::kReduceScatter:
      return ccl::reduce_scatter(call.in, call.out, mine, type, ccl::reduction::sum, world.communicator);
    case Collective::kAllGather: return ccl::allgatherv(call.in, mine, call.out, counts, type, world.communicator);
    case Collective::kAllToAll:
      if (even) return ccl::alltoall(call.in, call.out, mine, type, world.communicator);
      return ccl::alltoallv(call.in, counts, call.out, std::vector<std::size_t>(counts.size(), mine), type,
                            world.communicator);
    case Collective::kBroadcast: return ccl::broadcast(call.out, call.count, type, 0, world.communicator);
    case Collective::kBarrier: break;
  }
  return ccl::barrier(world.communicator);
}

Answer perform(void* self, const Call* call) {
  auto& world = *static_cast<World*>(self);
  const bool even = call->count % static_cast<std::size_t>(world.size) == 0;
  if (call->operation == Collective::kReduceScatter && !even) return Answer::kUnsupported;  // oneCCL needs equal shares
  try {
    call_ccl(world, *call).wait();
    return Answer::kDone;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ccl_collectives: %s\n", error.what());
    return Answer::kFailed;
  }
}

int run(int argc, char** argv) {
  ccl::init();
  int rank = 0;
  int size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  ccl::shared_ptr_class<ccl::kvs> store;
  ccl::kvs::address_type address;
  if (rank == 0) {
    store = ccl::create_main_kvs();
    address = store->get_address();
  }
  MPI_Bcast(address.data(), static_cast<int>(address.size()), MPI_BYTE, 0, MPI_COMM_WORLD);
  if (rank != 0) store = ccl::create_kvs(address);
  World world{ccl::create_communicator(size, rank, store), rank, size};
  return hvd::peers::measure({rank, size, &world, nullptr, perform}, argc, argv);
}

}  // namespace

int main(int argc, char** argv) {
  int level = MPI_THREAD_SINGLE;
  if (MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level) != MPI_SUCCESS) return 2;  // oneCCL needs this level
  int code = 2;
  try {
    code = run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ccl_collectives: %s\n", error.what());
  }
  if (code == 2) MPI_Abort(MPI_COMM_WORLD, code);  // other ranks may wait inside a collective
  MPI_Finalize();
  return code;
}
