#include "bench/session/validation.h"

#include <algorithm>

#include "engine/base/error.h"

namespace hvd::bench {

std::string_view name(ValidationFinding::Kind kind) noexcept {
  switch (kind) {
    case ValidationFinding::Kind::kDiffers: return "differs";
    case ValidationFinding::Kind::kDisagree: return "disagree";
    case ValidationFinding::Kind::kSlow: return "slow";
    case ValidationFinding::Kind::kUnclear: return "unclear";
  }
  return "";
}

int Validation::exit_code() const {
  if (findings.empty()) return 0;
  const bool unclear = std::all_of(findings.begin(), findings.end(), [](const ValidationFinding& finding) {
    return finding.kind == ValidationFinding::Kind::kUnclear;
  });
  return hvd::exit_code(unclear ? Errc::kInconclusive : Errc::kCheckFailed);
}

}  // namespace hvd::bench
