// Owns MPI's initialisation in this process: MPI is initialised once, and finalised when the last owner is destroyed.
// Turns MPI's return codes into hvd::Error.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "engine/base/mutex.h"
#include "engine/base/unique_handle.h"
#include "engine/comm/mpi/library.h"

namespace hvd::comm {

/// Errors: backend with `call` and MPI's text; mismatch if a message was longer than the receiver expected.
void check(int code, const char* call, const char* file = __builtin_FILE(), int line = __builtin_LINE());

class MpiEnvironment {
 public:
  /// Returns the only environment of this process. Initialises MPI unless the program has done so. A program that
  /// initialises MPI must finalise it. Errors: backend if MPI fails or if only the thread that started MPI may call it.
  static std::shared_ptr<MpiEnvironment> acquire();
  /// Like acquire(), but does not start MPI: the function named `caller` may return no object that would keep MPI
  /// initialised. Errors: invalid_argument if MPI has not been started; those of acquire().
  static std::shared_ptr<MpiEnvironment> acquire_started(const char* caller);
  ~MpiEnvironment();
  MpiEnvironment(const MpiEnvironment&) = delete;
  MpiEnvironment& operator=(const MpiEnvironment&) = delete;

  /// Call after a fault. MPI_Finalize is then not called, because it would wait for the lost peer for ever. The
  /// launcher ends the job, as it should after a fault.
  void abandon() noexcept { abandoned_ = true; }
  [[nodiscard]] bool abandoned() const noexcept { return abandoned_; }
  /// "Open MPI v4.1.4, pml default, btl tcp,self", "MPICH Version: 4.0.2".
  [[nodiscard]] std::string library() const;
  /// Returns the longest message that Open MPI sends over TCP without a rendezvous; 0 if MPI uses another transport or
  /// does not say. Read from MPI's control variables. The ranks of a job may have different values. Hold calls().
  [[nodiscard]] std::size_t tcp_eager_bytes() const;
  /// Hold this mutex around MPI calls if other threads may call MPI: only MPI_THREAD_SERIALIZED is requested.
  [[nodiscard]] Mutex& calls() noexcept { return calls_; }

 private:
  MpiEnvironment();
  bool owner_ = false;
  std::atomic<bool> abandoned_{false};
  Mutex calls_;
};

struct MpiCommTraits {
  using Handle = HvdMpiHandle;
  static Handle null() noexcept { return mpi().comm_null; }
  static void destroy(Handle comm) noexcept { mpi().comm_free(comm); }
};
using MpiComm = UniqueHandle<MpiCommTraits>;

}  // namespace hvd::comm
