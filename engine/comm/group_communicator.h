// A Communicator made of a RankState and the two planes that use it. Loopback and MPI differ only in how they make the
// RankState.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "engine/comm/control_plane.h"
#include "engine/comm/data_plane.h"
#include "engine/comm/rank_state.h"

namespace hvd::comm {

class GroupCommunicator : public Communicator {
 public:
  GroupCommunicator(std::unique_ptr<RankState> state, const CommOptions& options, std::string backend,
                    std::string library)
      : state_(std::move(state)),
        control_(*state_),
        data_(*state_, options),
        backend_(std::move(backend)),
        library_(std::move(library)) {}
  [[nodiscard]] const Topology& topology() const override { return state_->layout.topology; }
  [[nodiscard]] ControlPlane& control() override { return control_; }
  [[nodiscard]] DataPlane& data() override { return data_; }
  [[nodiscard]] std::string_view backend() const override { return backend_; }
  [[nodiscard]] std::string library() const override { return library_; }
  [[nodiscard]] std::string flight_record() const override { return state_->faults.flight_record(); }
  [[nodiscard]] std::vector<Neighbour> neighbours() const override { return state_->faults.neighbours(); }

 protected:
  [[nodiscard]] bool failed() const { return state_->faults.failed(); }

 private:
  std::unique_ptr<RankState> state_;
  GroupControl control_;
  GroupData data_;
  std::string backend_;
  std::string library_;
};

}  // namespace hvd::comm
