// What is done once before training: ranks meet, and a reduction is tried.
#pragma once

#include <string>

#include "engine/comm/device_communicator.h"

namespace hvd::comm::nccl {

/// Collective over `host`. Does every rank have a GPU of its own, and the same NCCL? A world of one needs none.
/// Errors: invalid_argument without `api`; those of take_census().
void meet(Communicator& host, gpu::Runtime& runtime, const Api* api, const NcclOptions& options, Deadline deadline);

/// One reduction whose sum is known: connections are made here and not in a step, and ranks that are connected wrongly
/// do not train. Owns the memory; after an error it lives until the stream has run dry, so it must outlive the try.
class Trial {
 public:
  explicit Trial(gpu::Runtime& runtime);
  /// Collective over the ranks of `where`. Errors: check_failed, beginning with `here`; those of the plane.
  void run(DevicePlane& plane, const Topology& where, const std::string& here, Deadline deadline);

 private:
  gpu::PinnedMemory staging_;
  gpu::DeviceMemory device_;
};

}  // namespace hvd::comm::nccl
