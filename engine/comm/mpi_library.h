// Chooses and loads the MPI of this process. The engine is linked with none: it calls MPI through a table
// (engine/comm/mpi/table.h), which a module fills, one module for each ABI of MPI. A process has one MPI, which is
// never closed. A program that links hvd::mpi uses the MPI that it links, and loads nothing.
#pragma once

#include <string>
#include <string_view>

namespace hvd::comm {

/// An ABI of MPI. Libraries of one ABI replace each other without compiling anew.
enum class MpiAbi {
  kUnknown,
  kOpenMpi,  ///< libmpi.so.40: Open MPI 4 and 5
  kMpich,    ///< libmpi.so.12, on Debian libmpich.so.12: MPICH, Intel MPI, Cray MPICH, MVAPICH
};
/// "Open MPI", "MPICH".
std::string_view name(MpiAbi abi);

/// What decides which MPI is loaded: `wanted`, else the launcher's ABI (the library in PREFIX/lib of the launcher
/// PREFIX/bin/mpirun comes first), else the MPI that CMake found, else the only one that can be loaded. Of an ABI the
/// dynamic loader's choice comes before one that lies beside the program (PREFIX/lib for PREFIX/bin/program).
struct MpiChoice {
  std::string wanted = {};             ///< value of HVD_MPI: "openmpi", "mpich" or a path; "": not given
  MpiAbi launcher = MpiAbi::kUnknown;  ///< ABI of the launcher, if its variables name it
  std::string evidence = {};           ///< such a variable, for messages: "OMPI_COMM_WORLD_SIZE=2"
  bool launched = false;  ///< several processes were started together, so that a wrong guess would make them separate
};

/// Loads MPI. Later calls do nothing. Call before the process has threads, and before it blocks signals: a library may
/// start threads and install handlers when it is loaded. Errors: unsupported if none can be loaded, if one has no
/// module here, or if two could be loaded and nothing says which; invalid_argument if `wanted` is not usable.
void load_mpi(const MpiChoice& choice);

/// Returns the path of the loaded library; "" if none is loaded or the program links its MPI. Any thread.
std::string mpi_path();

}  // namespace hvd::comm
