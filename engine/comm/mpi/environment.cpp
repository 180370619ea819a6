#include "engine/comm/mpi/environment.h"

#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <mutex>

#include "engine/base/error.h"
#include "engine/comm/mpi/check.h"

namespace hvd::comm {

std::shared_ptr<MpiEnvironment> MpiEnvironment::acquire() {
  // This state is process-wide because MPI itself is process-wide and can be initialised only once.
  static std::mutex mutex;
  static std::weak_ptr<MpiEnvironment> current;
  const std::lock_guard lock(mutex);
  auto environment = current.lock();
  if (environment == nullptr) {
    environment.reset(new MpiEnvironment);
    current = environment;
  }
  return environment;
}

std::shared_ptr<MpiEnvironment> MpiEnvironment::acquire_started(const char* caller) {
  int initialized = 0;
  check(MPI_Initialized(&initialized), "MPI_Initialized");
  if (initialized == 0) {
    throw Error(Errc::kInvalidArgument, std::string(caller) +
                                            ": MPI has not been started; make a communicator of the "
                                            "world (make_mpi) first, and keep it");
  }
  return acquire();
}

MpiEnvironment::MpiEnvironment() {
  int finalized = 0;
  check(MPI_Finalized(&finalized), "MPI_Finalized");
  if (finalized != 0) {
    throw Error(Errc::kBackend,
                "MPI was already finalised in this process and cannot start again; keep one mpi "
                "communicator alive for as long as another one may be made");
  }
  int initialized = 0;
  check(MPI_Initialized(&initialized), "MPI_Initialized");
  int provided = MPI_THREAD_SINGLE;
  if (initialized == 0) {
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
    owner_ = true;
  } else {
    check(MPI_Query_thread(&provided), "MPI_Query_thread");
  }
  if (provided < MPI_THREAD_SERIALIZED) {
    throw Error(Errc::kBackend,
                "this MPI accepts calls only from the thread that started it, but MPI_THREAD_SERIALIZED is needed; "
                "initialise it with MPI_Init_thread or use a build with thread support");
  }
}

MpiEnvironment::~MpiEnvironment() {
  int finalized = 0;
  if (owner_ && !abandoned_ && MPI_Finalized(&finalized) == MPI_SUCCESS && finalized == 0) MPI_Finalize();
}

std::string MpiEnvironment::library() const {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING + 1> version{};
  int length = 0;
  check(MPI_Get_library_version(version.data(), &length), "MPI_Get_library_version");
  std::string text = version.data();
  text = text.substr(0, text.find_first_of(",\n"));
  for (const char* framework : {"pml", "btl"}) {
    const char* forced = std::getenv((std::string("OMPI_MCA_") + framework).c_str());
    text += fmt::format(", {} {}", framework, forced == nullptr ? "default" : forced);
  }
  return text;
}

MpiComm duplicate(MPI_Comm comm) {
  MpiComm copy;
  check(MPI_Comm_dup(comm, copy.out()), "MPI_Comm_dup");
  check(MPI_Comm_set_errhandler(copy.get(), MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  return copy;
}

}  // namespace hvd::comm
