#include "bench/run_record.h"

namespace hvd::bench {

std::string_view name(Phase phase) noexcept {
  switch (phase) {
    case Phase::kFull: return "full";
    case Phase::kNone: return "none";
    case Phase::kSolo: return "solo";
  }
  return "";
}

std::string_view name(RunStatus status) noexcept {
  switch (status) {
    case RunStatus::kRunning: return "running";
    case RunStatus::kComplete: return "complete";
    case RunStatus::kIncomplete: return "incomplete";
  }
  return "";
}

}  // namespace hvd::bench
