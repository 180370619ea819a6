// Before NCCL is asked: does every rank have a GPU of its own, and the same NCCL? NCCL would find the one out too late
// and in other words, and the other not at all.
#pragma once

#include <string>
#include <vector>

#include "engine/comm/communicator.h"

namespace hvd::comm::nccl {

/// What one rank tells the others.
struct Seat {
  std::string gpu_uuid;
  std::string gpu_label;  ///< "GPU 0 (NVIDIA H200)"
  int visible_gpus = 0;   ///< how many this process can see
  std::string version;    ///< of NCCL

  [[nodiscard]] Bytes to_bytes() const;
  /// Errors: mismatch if `bytes` are not what to_bytes() wrote.
  static Seat parse(const Bytes& bytes);
};

/// One line that says what is wrong and how to launch; empty: nothing. `seats` and `hosts` are [rank].
std::string double_booking(const std::vector<Seat>& seats, const std::vector<std::string>& hosts);
std::string version_difference(const std::vector<Seat>& seats, const std::vector<std::string>& hosts);

/// Collective. Errors: invalid_argument (unless `share_gpus`) or mismatch with the above, the same on all ranks.
void take_census(Communicator& host, const Seat& mine, bool share_gpus, Deadline deadline);

}  // namespace hvd::comm::nccl
