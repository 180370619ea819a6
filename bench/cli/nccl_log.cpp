#include "bench/cli/nccl_log.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

namespace hvd::bench {

NcclLog::NcclLog(const Environment& environment) {
  for (const char* const name : {"NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"}) {
    if (!value_of(environment, name).empty()) return;
  }
  file_ = ::memfd_create("nccl-log", MFD_CLOEXEC);
  if (file_ < 0) return;
  const std::string path = "/proc/self/fd/" + std::to_string(file_);
  // NOLINTBEGIN(concurrency-mt-unsafe): none of our threads reads the environment later; only NCCL does, when it loads
  ::setenv("NCCL_DEBUG", "INFO", 1);
  ::setenv("NCCL_DEBUG_SUBSYS", "INIT,NET", 1);
  ::setenv("NCCL_DEBUG_FILE", path.c_str(), 1);
  // NOLINTEND(concurrency-mt-unsafe)
}

NcclLog::~NcclLog() {
  if (file_ >= 0) ::close(file_);
}

std::string NcclLog::text() const {
  if (file_ < 0) return {};
  constexpr std::size_t kMost = std::size_t{1} << 20;
  std::string text(kMost, '\0');
  const ssize_t got = ::pread(file_, text.data(), text.size(), 0);
  text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return text;
}

}  // namespace hvd::bench
