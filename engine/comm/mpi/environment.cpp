#include "engine/comm/mpi/environment.h"

#include <fmt/format.h>
#include <mpi.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>

#include "engine/base/error.h"

namespace hvd::comm {
namespace {

/// Returns the value of MPI's control variable `name`, a single number; nullopt if there is none.
std::optional<std::uint64_t> control_variable(const char* name) {
  int index = 0;
  if (MPI_T_cvar_get_index(name, &index) != MPI_SUCCESS) return std::nullopt;
  int length = 0, described = 0, verbosity = 0, binding = 0, scope = 0, count = 0;
  MPI_Datatype type = MPI_DATATYPE_NULL;
  MPI_T_enum meaning = MPI_T_ENUM_NULL;
  if (MPI_T_cvar_get_info(index, nullptr, &length, &verbosity, &type, &meaning, nullptr, &described, &binding,
                          &scope) != MPI_SUCCESS) {
    return std::nullopt;
  }
  MPI_T_cvar_handle handle = MPI_T_CVAR_HANDLE_NULL;
  if (MPI_T_cvar_handle_alloc(index, nullptr, &handle, &count) != MPI_SUCCESS) return std::nullopt;
  std::optional<std::uint64_t> value;
  unsigned narrow = 0;
  unsigned long wide = 0;
  unsigned long long widest = 0;
  const auto read = [&](auto& into) {
    if (MPI_T_cvar_read(handle, &into) == MPI_SUCCESS) value = into;
  };
  if (count == 1 && (type == MPI_INT || type == MPI_UNSIGNED)) read(narrow);
  if (count == 1 && type == MPI_UNSIGNED_LONG) read(wide);
  if (count == 1 && type == MPI_UNSIGNED_LONG_LONG) read(widest);
  MPI_T_cvar_handle_free(&handle);
  return value;
}

}  // namespace

void check(int code, const char* call, const char* file, int line) {
  if (code == MPI_SUCCESS) return;
  int error_class = MPI_ERR_UNKNOWN;
  MPI_Error_class(code, &error_class);
  if (error_class == MPI_ERR_TRUNCATE) {
    throw Error(Errc::kMismatch, std::string(call) +
                                     ": a message is longer than expected: all ranks must make the same calls in the "
                                     "same order, with the same sizes");
  }
  std::array<char, MPI_MAX_ERROR_STRING + 1> text{};
  int length = 0;
  const bool known = MPI_Error_string(code, text.data(), &length) == MPI_SUCCESS;
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

std::size_t MpiEnvironment::tcp_eager_bytes() const {
  // A limit includes MPI's header of at most 64 bytes. 4 KiB less keeps messages of whole pages.
  constexpr std::uint64_t kHeader = 4096;
  int provided = MPI_THREAD_SINGLE;
  if (MPI_T_init_thread(MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS) return 0;
  // With UCX or another messaging layer than ob1, or without TCP, one of the two variables does not exist.
  const bool by_tcp = control_variable("pml_ob1_send_pipeline_depth").has_value();
  const std::optional<std::uint64_t> limit = control_variable("btl_tcp_eager_limit");
  MPI_T_finalize();
  return by_tcp && limit.value_or(0) > 2 * kHeader ? *limit - kHeader : 0;
}

MpiComm duplicate(MPI_Comm comm) {
  MpiComm copy;
  check(MPI_Comm_dup(comm, copy.out()), "MPI_Comm_dup");
  check(MPI_Comm_set_errhandler(copy.get(), MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  return copy;
}

}  // namespace hvd::comm
