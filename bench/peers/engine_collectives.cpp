// Measures the collectives of this engine: mpirun -np N bin/engine_collectives registered|plain ...
// "registered": buffers that the data plane allocated. "plain": ordinary memory.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "bench/peers/collectives.h"
#include "engine/base/error.h"
#include "engine/comm/communicator.h"

namespace {

using hvd::Deadline;
using hvd::peers::Call;
using hvd::peers::Collective;
using hvd::peers::Library;

constexpr hvd::DataType kType = hvd::DataType::kF32;
constexpr hvd::ReduceOp kSum = hvd::ReduceOp::kSum;

struct World {
  std::unique_ptr<hvd::comm::Communicator> communicator;
  std::vector<std::unique_ptr<hvd::comm::RegisteredMemory>> memory;
  std::vector<std::size_t> counts;  // the ranks' equal shares; a member to save allocations
};

Deadline soon() { return Deadline::after(std::chrono::seconds(60)); }

void call_engine(World& world, const Call& call) {
  hvd::comm::DataPlane& plane = world.communicator->data();
  world.counts.assign(static_cast<std::size_t>(world.communicator->topology().size), call.share);
  const hvd::comm::Counts counts(world.counts);
  switch (call.operation) {
    case Collective::kAllReduce: return plane.all_reduce(call.out, call.count, kType, kSum, soon());
    case Collective::kReduceScatter: return plane.reduce_scatter(call.out, call.in, counts, kType, kSum, soon());
    case Collective::kAllGather: return plane.all_gather(call.out, call.in, counts, kType, soon());
    case Collective::kAllToAll: return plane.all_to_all(call.out, counts, call.in, counts, kType, soon());
    case Collective::kBroadcast: return plane.broadcast(call.out, call.count * sizeof(float), 0, soon());
    case Collective::kBarrier: return world.communicator->control().barrier(soon());
  }
}

/// Errors: hvd::Error, which measure_collectives() catches.
bool perform(void* self, const Call* call) {
  call_engine(*static_cast<World*>(self), *call);
  return true;
}

/// Errors: hvd::Error, which measure_collectives() catches.
void* allocate(void* self, std::size_t bytes) {
  auto& world = *static_cast<World*>(self);
  world.memory.push_back(world.communicator->data().allocate(bytes, soon()));
  return world.memory.back()->bytes().data();
}

}  // namespace

int main(int argc, char** argv) {
  const bool registered = argc > 1 && std::string(argv[1]) == "registered";
  try {
    World world{hvd::comm::make_mpi(), {}, {}};
    const hvd::comm::Topology& topology = world.communicator->topology();
    const Library library{topology.rank, topology.size, &world, registered ? allocate : nullptr, perform};
    const int code = hvd::peers::measure_collectives(library, argc - 1, argv + 1);
    if (code == 2) world.communicator->control().abort("the measurement failed");
    return code;
  } catch (const hvd::Error& error) {
    std::fprintf(stderr, "engine_collectives: %s\n", error.what());
    return hvd::exit_code(error.code());
  }
}
