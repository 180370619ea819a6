// MPI's life in this process: initialised once, finalised when the last owner goes.
#pragma once

#include <mpi.h>

#include <atomic>
#include <memory>
#include <string>

#include "engine/base/mutex.h"
#include "engine/base/unique_handle.h"

namespace hvd::comm {

class MpiEnvironment {
 public:
  /// The process' one environment; initialises MPI unless somebody else has, who then finalises it too.
  /// Errors: backend if MPI fails or cannot be called from another thread than the one that started it.
  static std::shared_ptr<MpiEnvironment> acquire();
  /// The same for `caller`, which must not start MPI: it may return with nothing that keeps MPI alive.
  /// Errors: invalid_argument if MPI has not been started; as acquire().
  static std::shared_ptr<MpiEnvironment> acquire_started(const char* caller);
  ~MpiEnvironment();
  MpiEnvironment(const MpiEnvironment&) = delete;
  MpiEnvironment& operator=(const MpiEnvironment&) = delete;

  /// After a fault: MPI_Finalize would wait for the lost peer for ever, so it is left out. The launcher then
  /// ends the job, which is what a fault calls for.
  void abandon() noexcept { abandoned_ = true; }
  [[nodiscard]] bool abandoned() const noexcept { return abandoned_; }
  /// "Open MPI v4.1.4, pml default, btl tcp,self".
  [[nodiscard]] std::string library() const;
  /// Held around every call that may come while another communicator of this process is in use by another thread:
  /// MPI_THREAD_SERIALIZED is all that we ask for.
  [[nodiscard]] Mutex& calls() noexcept { return calls_; }

 private:
  MpiEnvironment();
  bool owner_ = false;
  std::atomic<bool> abandoned_{false};
  Mutex calls_;
};

struct MpiCommTraits {
  using Handle = MPI_Comm;
  static Handle null() noexcept { return MPI_COMM_NULL; }
  static void destroy(Handle comm) noexcept { MPI_Comm_free(&comm); }
};
using MpiComm = UniqueHandle<MpiCommTraits>;

/// A duplicate of `comm` that reports errors by return code. Collective.
MpiComm duplicate(MPI_Comm comm);

}  // namespace hvd::comm
