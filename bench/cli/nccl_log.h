// Keeps the log of NCCL's start for the facts of a run, since no function of NCCL 2.18 to 2.30 tells which network it
// chose. The log goes to a file in memory.
//
// One per process, made at the program's edge before NCCL is loaded.
#pragma once

#include <string>

#include "bench/cli/environment.h"

namespace hvd::bench {

class NcclLog {
 public:
  /// Sets NCCL_DEBUG, NCCL_DEBUG_SUBSYS and NCCL_DEBUG_FILE of this process, unless `environment` has one of them: the
  /// user's settings stay, and text() is empty.
  explicit NcclLog(const Environment& environment);
  ~NcclLog();
  NcclLog(const NcclLog&) = delete;
  NcclLog& operator=(const NcclLog&) = delete;

  /// So far, its beginning if it is long. Any thread.
  [[nodiscard]] std::string text() const;

 private:
  int file_ = -1;
};

}  // namespace hvd::bench
