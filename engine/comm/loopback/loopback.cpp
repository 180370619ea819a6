// N ranks as threads of one process. Each pretended node has its own segment; nodes communicate through inboxes.
#include <algorithm>
#include <string>
#include <utility>

#include "engine/base/error.h"
#include "engine/comm/group_communicator.h"
#include "engine/comm/loopback/transport.h"
#include "engine/comm/loopback/world.h"

namespace hvd::comm {

std::vector<std::unique_ptr<Communicator>> make_loopback(int size, const CommOptions& options, int ranks_per_node) {
  return make_wrapped_loopback(size, options, ranks_per_node,
                               [](int /*rank*/, std::unique_ptr<Transport> inner) { return inner; });
}

std::vector<std::unique_ptr<Communicator>> make_wrapped_loopback(int size, const CommOptions& options,
                                                                 int ranks_per_node, const WrapTransport& wrap) {
  if (size < 1)
    throw Error(Errc::kInvalidArgument, "a loopback world needs at least one rank, not " + std::to_string(size));
  if (ranks_per_node <= 0) ranks_per_node = options.ranks_per_node;
  const int per_node = ranks_per_node > 0 ? ranks_per_node : size;
  std::vector<int> node_of;
  std::vector<std::string> hosts;
  for (int r = 0; r < size; ++r) {
    node_of.push_back(r / per_node);
    hosts.push_back("node" + std::to_string(r / per_node));
  }
  if (options.algorithm == Algorithm::kMpiAllreduce) {
    throw Error(
        Errc::kInvalidArgument,
        "algorithm mpi needs the mpi backend; loopback has auto, shm, ring, hierarchical, doubling, rabenseifner");
  }
  const auto inboxes = make_inboxes(size);
  std::vector<std::shared_ptr<SharedMemory>> segments;  // [node]
  std::vector<std::shared_ptr<Handover>> handovers;     // [node]
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int r = 0; r < size; ++r) {
    Layout layout(r, node_of, hosts);
    if (layout.topology.local_rank == 0) {
      segments.push_back(
          std::make_shared<SharedMemory>(SharedMemory::anonymous(Segment::bytes_for(layout.topology.local_size))));
      handovers.push_back(std::make_shared<Handover>());
    }
    auto state = std::make_unique<RankState>(std::move(layout), segments.back(), NodeGroup::Kind::kThreads);
    state->group.set_handover(handovers.back());
    state->set_transport(wrap(r, std::make_unique<ThreadTransport>(inboxes, r, state->faults)));
    ranks.push_back(
        std::make_unique<GroupCommunicator>(std::move(state), options, "loopback", "threads of one process"));
  }
  return ranks;
}

std::vector<std::unique_ptr<Communicator>> make_loopback_set(int size, std::span<const int> ranks,
                                                             const CommOptions& options) {
  check_set(ranks, size);
  auto members = make_loopback(static_cast<int>(ranks.size()), options);
  std::vector<std::unique_ptr<Communicator>> of_world(static_cast<std::size_t>(size));
  for (std::size_t i = 0; i < ranks.size(); ++i) of_world[static_cast<std::size_t>(ranks[i])] = std::move(members[i]);
  return of_world;
}

}  // namespace hvd::comm
