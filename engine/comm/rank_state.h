// The parts that the control plane and the data plane of a rank share. The rank's Communicator owns the RankState; one
// thread uses it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "engine/comm/faults.h"
#include "engine/comm/layout.h"
#include "engine/comm/shm/node_group.h"
#include "engine/comm/shm/shared_memory.h"
#include "engine/comm/transport.h"

namespace hvd::comm {

struct RankState {
  /// `the_memory` holds the segment of this rank's node. Call set_transport() afterwards, because the transport's
  /// constructor needs `faults`. The transport may stay empty if there is only one node.
  RankState(Layout the_layout, std::shared_ptr<SharedMemory> the_memory, NodeGroup::Kind kind)
      : layout(std::move(the_layout)),
        memory(std::move(the_memory)),
        faults(layout, Segment(memory->bytes(), layout.topology.local_size)),
        group(layout, Segment(memory->bytes(), layout.topology.local_size), faults, kind),
        flights(Segment(memory->bytes(), layout.topology.local_size).cell(layout.topology.local_rank).flights) {}
  RankState(const RankState&) = delete;
  RankState& operator=(const RankState&) = delete;

  /// Starts a collective; the collective ends when the returned Wait is destroyed. `dtype`: type of the elements, if
  /// they have one. Errors: peer_lost if a rank has aborted. begin() checks this because a rank whose messages have all
  /// arrived does not wait, and would not notice the abort.
  Wait begin(std::string_view operation, std::size_t bytes, Deadline deadline, std::optional<DataType> dtype = {}) {
    faults.throw_if_aborted();
    const Clock::time_point now = coarse_now();
    flights.enter(operation, ++operations, bytes, dtype, now);
    return Wait{operation, operations, bytes, deadline, now, InFlight(flights, operations)};
  }
  [[nodiscard]] bool one_node() const { return layout.topology.nodes == 1; }
  [[nodiscard]] bool leader() const { return layout.topology.local_rank == 0; }
  void set_transport(std::unique_ptr<Transport> its) {
    transport = std::move(its);
    faults.set_transport(transport.get());
  }

  const Layout layout;
  const std::shared_ptr<SharedMemory> memory;
  Faults faults;
  NodeGroup group;
  std::unique_ptr<Transport> transport;
  FlightRecord& flights;  ///< this rank's record, in its cell of the segment
  std::uint64_t operations = 0;
};

}  // namespace hvd::comm
