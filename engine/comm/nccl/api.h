// The functions of NCCL that this project calls. Their arguments have types of this project, so that no caller includes
// nccl.h and a test can replace NCCL. No policy here: no function waits or retries.
//
// Communicators are non-blocking: every call may return kInProgress. The caller must then call state() until the result
// is no longer kInProgress, before it uses the communicator or the stream again.
// Threads: as in NCCL. One thread at a time uses a communicator, but other threads may call state() and comm_abort().
// The caller must hold no lock during comm_abort() or destroy().
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "engine/base/types.h"
#include "engine/gpu/runtime.h"
#include "engine/gpu/shared_library.h"

namespace hvd::comm::nccl {

struct Version {
  int major = 0, minor = 0, patch = 0;
  // clang-tidy 14 takes the zero in a defaulted <=> for a null pointer.
  auto operator<=>(const Version&) const = default;  // NOLINT(modernize-use-nullptr)
  [[nodiscard]] std::string text() const;            ///< "2.28.9"
};
/// Decodes the number of ncclGetVersion(): 1000 * major + 100 * minor + patch up to NCCL 2.8, and
/// 10000 * major + 100 * minor + patch since NCCL 2.9.
Version version_from_number(int number) noexcept;

/// In 2.18, an abort by another thread does not stop the thread that initialises the communicator, which then uses
/// freed memory (ncclGroupJobAbort() takes the caller's job there; src/group.cc). 2.19.3 is the first release of 2.19.
inline constexpr Version kOldestVersion{2, 19, 3};

enum class Status : std::uint8_t { kDone, kInProgress, kFailed };
struct Result {
  Status status = Status::kDone;
  int code = 0;         ///< ncclResult_t
  bool remote = false;  ///< true if NCCL reports that a peer caused the error
};

using UniqueId = std::array<std::byte, 128>;
/// ncclComm_t.
struct Comm {
  void* native = nullptr;
};
struct Registration {
  void* native = nullptr;
};

struct CommConfig {
  int rank = 0, size = 1;
  int max_ctas = 0;  ///< maximum thread blocks per collective; 0: NCCL's choice
};

/// Arguments of one call. `in` and `out` point to device memory. They are equal or do not overlap, with one exception:
/// if one of them has `count` elements per rank, in the order of ranks, the other may be this rank's share of these
/// elements. NCCL supports both cases, equal addresses and a rank's own share, as operations in place.
struct CallArguments {
  const void* in = nullptr;         ///< unused by receive
  void* out = nullptr;              ///< unused by send; reduce: may be null if this rank is not the root
  std::size_t count = 0;            ///< elements; reduce_scatter and all_gather: elements of one rank's share
  DataType dtype = DataType::kF32;  ///< not kI16, which NCCL does not have
  ReduceOp op = ReduceOp::kSum;     ///< used by all_reduce, reduce, reduce_scatter
  int root = 0;                     ///< used by broadcast, reduce
  int peer = 0;                     ///< used by send, receive; may be this rank
};

class Api {
 public:
  virtual ~Api() = default;
  [[nodiscard]] virtual Version version() const = 0;
  /// The file that NCCL was loaded from.
  [[nodiscard]] virtual std::string name() const = 0;
  /// Returns one line: the name of the result code, and NCCL's last error message if there is one.
  [[nodiscard]] virtual std::string explain(Result result, Comm comm) const = 0;

  virtual Result unique_id(UniqueId& id) = 0;
  virtual Result init_rank(Comm& comm, const UniqueId& id, const CommConfig& config) = 0;
  /// Returns kInProgress while the last call is in progress, kFailed if that call or a later communication failed, and
  /// kDone otherwise.
  virtual Result state(Comm comm) = 0;
  virtual Result finalize(Comm comm) = 0;
  /// Destroys `comm`. Waits until all ranks have closed it, and until no CUDA graph holds a collective of `comm`, so
  /// destroy such graphs first.
  virtual Result destroy(Comm comm) = 0;
  /// Calls ncclCommAbort, which ends work in flight at once. The call returns only when no CUDA graph holds a
  /// collective of `comm`, because commDestroySync() waits for the graphs even during an abort (NCCL 2.19 to 2.30).
  virtual Result comm_abort(Comm comm) = 0;

  // NCCL takes the calls that one thread makes between begin_group() and end_group() as one group. For a non-blocking
  // communicator NCCL starts one thread per group, or one thread per call outside a group (NCCL 2.28.9). The calls are
  // enqueued only after end_group() has returned and state() is no longer kInProgress. Always call end_group() after
  // begin_group().
  virtual Result begin_group() = 0;
  virtual Result end_group() = 0;

  virtual Result all_reduce(Comm comm, const CallArguments& what, gpu::StreamView stream) = 0;
  virtual Result broadcast(Comm comm, const CallArguments& what, gpu::StreamView stream) = 0;
  virtual Result reduce(Comm comm, const CallArguments& what, gpu::StreamView stream) = 0;
  virtual Result reduce_scatter(Comm comm, const CallArguments& what, gpu::StreamView stream) = 0;
  virtual Result all_gather(Comm comm, const CallArguments& what, gpu::StreamView stream) = 0;

  // The stream continues after the peer has made the matching call, with the same count and type. Messages of one group
  // progress together. Messages outside a group progress one by one, so two ranks that both send first wait for ever.
  virtual Result send(Comm comm, const CallArguments& what, gpu::StreamView stream) = 0;
  virtual Result receive(Comm comm, const CallArguments& what, gpu::StreamView stream) = 0;

  virtual Result allocate(std::size_t bytes, void*& data) = 0;
  virtual Result free(void* data) = 0;
  virtual Result comm_register(Comm comm, std::span<std::byte> memory, Registration& registration) = 0;
  virtual Result comm_deregister(Comm comm, Registration registration) = 0;
};

/// Looks for libnccl in the places that gpu::candidates() lists for every library. Errors: unsupported if no libnccl is
/// found (the text lists the places in one line), if the library lacks a function or is older than kOldestVersion, or
/// in a build without NCCL.
std::unique_ptr<Api> load(const gpu::LibrarySearch& search);

}  // namespace hvd::comm::nccl
