// Keeps the log of NCCL's start in a file in memory, because no function of NCCL 2.19 to 2.30 tells which network NCCL
// chose. The stored facts of a run take the network from this log. Application makes one NcclLog per process, before
// NCCL is loaded.
#pragma once

#include <string>

#include "bench/store/process_start.h"

namespace hvd::bench {

class NcclLog {
 public:
  /// Sets NCCL_DEBUG, NCCL_DEBUG_SUBSYS and NCCL_DEBUG_FILE of this process. If `environment` already has one of them,
  /// the user's settings stay and text() is empty.
  explicit NcclLog(const Environment& environment);
  ~NcclLog();
  NcclLog(const NcclLog&) = delete;
  NcclLog& operator=(const NcclLog&) = delete;

  /// Returns the log so far, or only its beginning if it is long. Any thread may call it.
  [[nodiscard]] std::string text() const;

 private:
  int file_ = -1;
};

}  // namespace hvd::bench
