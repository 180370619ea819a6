#include "engine/comm/mpi/check.h"

#include <fmt/format.h>
#include <mpi.h>

#include <array>
#include <cstring>
#include <string>

#include "engine/base/error.h"

namespace hvd::comm {

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

}  // namespace hvd::comm
