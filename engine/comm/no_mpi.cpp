// Replaces mpi/ in a build without MPI.
#include "engine/base/error.h"
#include "engine/comm/communicator.h"
#include "engine/comm/mpi_library.h"

namespace hvd::comm {

bool mpi_available() noexcept { return false; }
std::string mpi_path() { return {}; }

namespace {

[[noreturn]] void refuse() {
  throw Error(Errc::kUnsupported,
              "this build has no MPI; install it (Debian: apt-get install libopenmpi-dev), configure with "
              "-DHVD_WITH_MPI=ON and build again, or use --comm loopback");
}

}  // namespace

void load_mpi(const MpiChoice& /*choice*/) { refuse(); }
std::unique_ptr<Communicator> make_mpi(const CommOptions& /*options*/, const Patience& /*patience*/) { refuse(); }
std::unique_ptr<Communicator> make_mpi_set(std::span<const int> /*ranks*/, const CommOptions& /*options*/,
                                           const Patience& /*patience*/) {
  refuse();
}

}  // namespace hvd::comm
