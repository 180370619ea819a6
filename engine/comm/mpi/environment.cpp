#include "engine/comm/mpi/environment.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

#include "engine/base/error.h"

namespace hvd::comm {
namespace {

constexpr std::size_t kTextBytes = 8192;  // MPICH's MPI_MAX_LIBRARY_VERSION_STRING, the longest text of MPI

}  // namespace

void check(int code, const char* call, const char* file, int line) {
  if (code == 0) return;
  std::array<char, kTextBytes> text{};
  int truncated = 0;
  const bool known = mpi().error_text(code, text.data(), text.size(), &truncated) == 0;
  if (truncated != 0) {
    throw Error(Errc::kMismatch, std::string(call) +
                                     ": a message is longer than expected: all ranks must make the same calls in the "
                                     "same order, with the same sizes");
  }
  const char* name = std::strrchr(file, '/');
  throw Error(Errc::kBackend, fmt::format("{} failed: {} ({}:{})", call, known ? text.data() : "unknown MPI error",
                                          name == nullptr ? file : name + 1, line));
}

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
  check(mpi().initialized(&initialized), "MPI_Initialized");
  if (initialized == 0) {
    throw Error(Errc::kInvalidArgument, std::string(caller) +
                                            ": MPI has not been started; make a communicator of the "
                                            "world (make_mpi) first, and keep it");
  }
  return acquire();
}

MpiEnvironment::MpiEnvironment() {
  int finalized = 0;
  check(mpi().finalized(&finalized), "MPI_Finalized");
  if (finalized != 0) {
    throw Error(Errc::kBackend,
                "MPI was already finalised in this process and cannot start again; keep one mpi "
                "communicator alive for as long as another one may be made");
  }
  int initialized = 0;
  check(mpi().initialized(&initialized), "MPI_Initialized");
  int threads = HVD_MPI_ONE_THREAD;
  if (initialized == 0) {
    check(mpi().init(&threads), "MPI_Init_thread");
    owner_ = true;
  } else {
    check(mpi().query_threads(&threads), "MPI_Query_thread");
  }
  if (threads == HVD_MPI_ONE_THREAD) {
    throw Error(Errc::kBackend,
                "this MPI accepts calls only from the thread that started it, but MPI_THREAD_SERIALIZED is needed; "
                "initialise it with MPI_Init_thread or use a build with thread support");
  }
}

MpiEnvironment::~MpiEnvironment() {
  int finalized = 0;
  if (owner_ && !abandoned_ && mpi().finalized(&finalized) == 0 && finalized == 0) mpi().finalize();
}

std::string MpiEnvironment::library() const {
  std::array<char, kTextBytes> version{};
  check(mpi().library_version(version.data(), version.size()), "MPI_Get_library_version");
  std::string text = version.data();
  text = text.substr(0, text.find_first_of(",\n"));  // MPICH's is "MPICH Version:<tab or blanks>4.0.2<line break>..."
  std::replace(text.begin(), text.end(), '\t', ' ');
  const auto both_blank = [](char left, char right) { return left == ' ' && right == ' '; };
  text.erase(std::unique(text.begin(), text.end(), both_blank), text.end());
  if (text.starts_with("MPICH") || text.starts_with("Intel")) return text;
  for (const char* framework : {"pml", "btl"}) {
    const char* forced = std::getenv((std::string("OMPI_MCA_") + framework).c_str());
    text += fmt::format(", {} {}", framework, forced == nullptr ? "default" : forced);
  }
  return text;
}

std::size_t MpiEnvironment::tcp_eager_bytes() const {
  // A limit includes MPI's header of at most 64 bytes. 4 KiB less keeps messages of whole pages.
  constexpr std::uint64_t kHeader = 4096;
  // With UCX or another messaging layer than ob1, or without TCP, one of the two variables does not exist.
  const std::array<const char*, 2> names{"pml_ob1_send_pipeline_depth", "btl_tcp_eager_limit"};
  std::array<std::uint64_t, 2> values{};
  const bool by_tcp = mpi().control_variables(names.data(), names.size(), values.data()) == 0;
  const std::uint64_t limit = values[1];
  return by_tcp && limit > 2 * kHeader ? limit - kHeader : 0;
}

}  // namespace hvd::comm
