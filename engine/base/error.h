// The only error type of the project. Code throws it for bad input, a lost peer, or a device or disk fault. Broken
// invariants use HVD_ASSERT (assert.h) instead. Only main() turns an Error into an exit code.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace hvd {

enum class Errc {
  kInvalidArgument,  ///< bad option, bad shape, bad file content: the caller can fix it
  kIo,               ///< access to a file, a directory or a database failed
  kUnsupported,      ///< this build, processor or device lacks the feature
  kOutOfMemory,      ///< no more host, shared or device memory
  kTimeout,          ///< a deadline passed and no single rank could be blamed
  kPeerLost,         ///< a rank died, hangs or aborted
  kMismatch,         ///< ranks disagree (bucket plan, tensor shape, type, operation, checksum)
  kInterrupted,      ///< the scheduler or the user sent a signal
  kCheckFailed,      ///< a result is wrong or a regression was found
  kInconclusive,     ///< too few or too noisy data for a verdict
  kNotComparable,    ///< the runs have different fingerprints
  kBackend,          ///< a library (oneDNN, cuDNN, NCCL, MPI, SQLite) failed
};

/// Short stable word for `code`, e.g. "peer_lost".
std::string_view name(Errc code) noexcept;

/// Exit code of the program: 0 good, 1 failed check, 2 usage or I/O, 3 inconclusive, 4 not comparable,
/// 5 peer lost or timeout, 6 ranks disagree, 7 interrupted, 8 resource or library fault.
int exit_code(Errc code) noexcept;

/// `what()` says in one line what failed, where it failed (rank, host, tensor, file), and what to do next.
class Error : public std::runtime_error {
 public:
  Error(Errc code, const std::string& what) : std::runtime_error(what), code_(code) {}
  [[nodiscard]] Errc code() const noexcept { return code_; }

 private:
  Errc code_;
};

}  // namespace hvd
