#include "engine/base/error.h"

#include <fmt/format.h>

#include <stdexcept>

#include "engine/base/assert.h"

namespace hvd {

void assertion_failed(const char* expression, const char* file, int line) {
  throw std::logic_error(
      fmt::format("internal error: assertion '{}' failed at {}:{}; please report it", expression, file, line));
}

std::string_view name(Errc code) noexcept {
  switch (code) {
    case Errc::kInvalidArgument: return "invalid_argument";
    case Errc::kIo: return "io";
    case Errc::kUnsupported: return "unsupported";
    case Errc::kOutOfMemory: return "out_of_memory";
    case Errc::kTimeout: return "timeout";
    case Errc::kPeerLost: return "peer_lost";
    case Errc::kMismatch: return "mismatch";
    case Errc::kInterrupted: return "interrupted";
    case Errc::kCheckFailed: return "check_failed";
    case Errc::kInconclusive: return "inconclusive";
    case Errc::kNotComparable: return "not_comparable";
    case Errc::kBackend: return "backend";
  }
  return "unknown";
}

int exit_code(Errc code) noexcept {
  switch (code) {
    case Errc::kCheckFailed: return 1;
    case Errc::kInvalidArgument:
    case Errc::kIo:
    case Errc::kUnsupported: return 2;
    case Errc::kInconclusive: return 3;
    case Errc::kNotComparable: return 4;
    case Errc::kTimeout:
    case Errc::kPeerLost: return 5;
    case Errc::kMismatch: return 6;
    case Errc::kInterrupted: return 7;
    case Errc::kOutOfMemory:
    case Errc::kBackend: return 8;
  }
  return 8;
}

}  // namespace hvd
