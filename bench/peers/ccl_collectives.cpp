// Measures the collectives of oneCCL on host memory. scripts/maintain/peers compiles this program against
// build/peers/oneccl. The MPI that comes with oneCCL starts the ranks.
#include <mpi.h>

#include <cstdio>
#include <exception>
#include <oneapi/ccl.hpp>
#include <vector>

#include "bench/peers/collectives.h"

namespace {

using hvd::peers::Call;
using hvd::peers::Collective;

constexpr auto kType = ccl::datatype::float32;
constexpr auto kSum = ccl::reduction::sum;

struct World {
  ccl::communicator communicator;
  int size;
};

ccl::event call_ccl(World& world, const Call& call) {
  const std::vector<std::size_t> counts(static_cast<std::size_t>(world.size), call.share);
  switch (call.operation) {
    case Collective::kAllReduce: return ccl::allreduce(call.in, call.out, call.count, kType, kSum, world.communicator);
    case Collective::kReduceScatter:
      return ccl::reduce_scatter(call.in, call.out, call.share, kType, kSum, world.communicator);
    case Collective::kAllGather:
      return ccl::allgatherv(call.in, call.share, call.out, counts, kType, world.communicator);
    case Collective::kAllToAll: return ccl::alltoall(call.in, call.out, call.share, kType, world.communicator);
    case Collective::kBroadcast: return ccl::broadcast(call.out, call.count, kType, 0, world.communicator);
    case Collective::kBarrier: break;
  }
  return ccl::barrier(world.communicator);
}

/// Errors: std::exception, which measure_collectives() catches.
bool perform(void* self, const Call* call) {
  call_ccl(*static_cast<World*>(self), *call).wait();
  return true;
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
  World world{ccl::create_communicator(size, rank, store), size};
  return hvd::peers::measure_collectives({rank, size, &world, nullptr, perform}, argc, argv);
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
