// Measures the collectives of this engine: mpirun -np N bin/engine_collectives registered|plain ...
// "registered": buffers that the data plane allocated. "plain": ordinary memory.
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bench/peers/collectives.h"
#include "engine/base/error.h"
#include "engine/comm/communicator.h"

namespace {

using hvd::DataType;
using hvd::Deadline;
using hvd::ReduceOp;
using hvd::comm::Communicator;
using hvd::comm::Counts;
using hvd::peers::Answer;
using hvd::peers::Call;
using hvd::peers::Collective;
using hvd::peers::Library;
using hvd::peers::Type;

struct World {
  std::unique_ptr<Communicator> communicator;
  std::vector<std::unique_ptr<hvd::comm::RegisteredMemory>> memory;
  std::vector<std::size_t> received;  // counts of an all_to_all; a member to save allocations
};

Deadline soon() { return Deadline::after(std::chrono::seconds(60)); }

DataType data_type(Type type) {
  switch (type) {
    case Type::kF32: return DataType::kF32;
    case Type::kF64: return DataType::kF64;
    case Type::kI32: return DataType::kI32;
    case Type::kI64: break;
  }
  return DataType::kI64;
}

void call_engine(World& world, const Call& call) {
  Communicator& communicator = *world.communicator;
  hvd::comm::DataPlane& plane = communicator.data();
  const auto size = static_cast<std::size_t>(communicator.topology().size);
  const DataType type = data_type(call.type);
  const Counts counts(call.counts, size);
  switch (call.operation) {
    case Collective::kAllReduce:
      if (call.in_place) return plane.all_reduce(call.out, call.count, type, ReduceOp::kSum, soon());
      return plane.all_reduce_into(call.out, call.in, call.count, type, ReduceOp::kSum, soon());
    case Collective::kReduceScatter:
      return plane.reduce_scatter(call.out, call.in, counts, type, ReduceOp::kSum, soon());
    case Collective::kAllGather: return plane.all_gather(call.out, call.in, counts, type, soon());
    case Collective::kAllToAll: {
      world.received.assign(size, counts[static_cast<std::size_t>(communicator.topology().rank)]);
      return plane.all_to_all(call.out, world.received, call.in, counts, type, soon());
    }
    case Collective::kBroadcast: return plane.broadcast(call.out, call.count * hvd::size_of(type), 0, soon());
    case Collective::kBarrier: return communicator.control().barrier(soon());
  }
}

Answer perform(void* self, const Call* call) {
  try {
    call_engine(*static_cast<World*>(self), *call);
    return Answer::kDone;
  } catch (const hvd::Error& error) {
    std::fprintf(stderr, "engine_collectives: %s\n", error.what());
    return Answer::kFailed;
  }
}

void* allocate(void* self, std::size_t bytes) {
  auto& world = *static_cast<World*>(self);
  try {
    world.memory.push_back(world.communicator->data().allocate(bytes, soon()));
    return world.memory.back()->bytes().data();
  } catch (const hvd::Error& error) {
    std::fprintf(stderr, "engine_collectives: %s\n", error.what());
    return nullptr;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string memory = argc > 1 ? argv[1] : "";
  if (memory != "registered" && memory != "plain") {
    std::fprintf(stderr, "engine_collectives: the first argument must be registered or plain\n");
    return 2;
  }
  try {
    World world{hvd::comm::make_mpi(), {}, {}};
    const hvd::comm::Topology& topology = world.communicator->topology();
    const Library library{topology.rank, topology.size, &world, memory == "registered" ? allocate : nullptr, perform};
    const int code = hvd::peers::measure(library, argc - 1, argv + 1);
    if (code == 2) world.communicator->control().abort("the measurement failed");
    return code;
  } catch (const hvd::Error& error) {
    std::fprintf(stderr, "engine_collectives: %s\n", error.what());
    return hvd::exit_code(error.code());
  }
}
