// NCCL as we use it: the functions that we call and nothing else, in our own types, so that no caller includes its
// header and a test can put another one in its place. No policy here: nothing waits, nothing is retried.
//
// Communicators are non-blocking: every call may answer kInProgress, and then state() is asked until it does not,
// before anything else is done with the communicator or the stream.
// Threads: as NCCL's. One thread at a time uses a communicator, but state() and cancel() may come from another. Nobody
// holds a lock over cancel() or destroy().
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
/// From ncclGetVersion(): 1000 * major + 100 * minor + patch up to 2.8, 10000 * major + 100 * minor + patch since.
Version version_from_number(int number) noexcept;

/// Non-blocking communicators with maxCTAs: documented since 2.17, and what this was written against since 2.18.
inline constexpr Version kOldestVersion{2, 18, 1};

enum class Status : std::uint8_t { kDone, kInProgress, kFailed };
struct Result {
  Status status = Status::kDone;
  int code = 0;         ///< ncclResult_t
  bool remote = false;  ///< a peer's fault, as far as NCCL can tell
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
  int max_ctas = 0;  ///< thread blocks per collective at most; 0: NCCL's choice
};

/// Arguments of one call, in device memory. `in` and `out` are equal or do not overlap. If one of them holds `count`
/// elements per rank, in the order of ranks, the other may be this rank's share of it. NCCL supports both forms of
/// operations in place.
struct Operation {
  const void* in = nullptr;         ///< unused by receive
  void* out = nullptr;              ///< unused by send; reduce: may be null where this rank is not the root
  std::size_t count = 0;            ///< reduce_scatter, all_gather: of one rank's share
  DataType dtype = DataType::kF32;  ///< not kI16, which NCCL lacks
  ReduceOp op = ReduceOp::kSum;     ///< of those that reduce
  int root = 0;                     ///< broadcast, reduce
  int peer = 0;                     ///< send, receive; may be this rank
};

class Api {
 public:
  virtual ~Api() = default;
  [[nodiscard]] virtual Version version() const = 0;
  /// File that it was loaded from.
  [[nodiscard]] virtual std::string name() const = 0;
  /// In one line: the code by name, and the library's own words if it has any.
  [[nodiscard]] virtual std::string explain(Result result, Comm comm) const = 0;

  virtual Result unique_id(UniqueId& id) = 0;
  virtual Result init_rank(Comm& comm, const UniqueId& id, const CommConfig& config) = 0;
  /// What became of the last call that was in progress, and whether communication has failed since.
  virtual Result state(Comm comm) = 0;
  virtual Result finalize(Comm comm) = 0;
  /// Waits for every CUDA graph that holds a collective of `comm`: destroy those first.
  virtual Result destroy(Comm comm) = 0;
  /// ncclCommAbort: ends work in flight at once. Returns only when no CUDA graph holds a collective of `comm`:
  /// commDestroySync() waits for the graphs even then (2.18 to 2.30).
  virtual Result cancel(Comm comm) = 0;

  // Calls between these two, of one thread, are handed over together: NCCL starts one thread for all of them where a
  // communicator is non-blocking, and else one for each (2.28.9). Until end_group() has returned, and state() with it,
  // nothing is enqueued. Both are always called.
  virtual Result begin_group() = 0;
  virtual Result end_group() = 0;

  virtual Result all_reduce(Comm comm, const Operation& what, gpu::StreamView stream) = 0;
  virtual Result broadcast(Comm comm, const Operation& what, gpu::StreamView stream) = 0;
  virtual Result reduce(Comm comm, const Operation& what, gpu::StreamView stream) = 0;
  virtual Result reduce_scatter(Comm comm, const Operation& what, gpu::StreamView stream) = 0;
  virtual Result all_gather(Comm comm, const Operation& what, gpu::StreamView stream) = 0;

  // The stream goes on when the peer has made the matching call, with the same count and type. Messages of one group
  // progress together. Others go one by one, so two ranks that both send first wait for ever.
  virtual Result send(Comm comm, const Operation& what, gpu::StreamView stream) = 0;
  virtual Result receive(Comm comm, const Operation& what, gpu::StreamView stream) = 0;

  /// Since 2.19. Where false, the next four must not be called.
  [[nodiscard]] virtual bool can_register() const = 0;
  virtual Result allocate(std::size_t bytes, void*& data) = 0;
  virtual Result free(void* data) = 0;
  virtual Result enroll(Comm comm, std::span<std::byte> memory, Registration& registration) = 0;
  virtual Result withdraw(Comm comm, Registration registration) = 0;
};

/// Looks for libnccl as all libraries are looked for (gpu::candidates). Errors: unsupported if there is none (one line
/// that lists what was tried), if it lacks a function, is older than kOldestVersion, or this build has no NCCL.
std::unique_ptr<Api> load(const gpu::LibrarySearch& search);

}  // namespace hvd::comm::nccl
