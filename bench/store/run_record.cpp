#include "bench/store/run_record.h"

#include <utility>

namespace hvd::bench {
namespace {

constexpr std::string_view kCautionPrefix = "caution.";

}  // namespace

void add_caution(Provenance& provenance, std::string_view name, std::string text) {
  if (text.empty()) return;
  provenance.insert_or_assign(std::string(kCautionPrefix).append(name), ProvenanceFact{std::move(text), false});
}

std::vector<std::string> caution_lines(const Provenance& provenance) {
  std::vector<std::string> lines;
  for (auto fact = provenance.lower_bound(std::string(kCautionPrefix));
       fact != provenance.end() && fact->first.starts_with(kCautionPrefix); ++fact) {
    lines.push_back("caution: " + fact->second.value);
  }
  return lines;
}

bool on_gpus(const RunRecord& run) { return run.device == "cuda" || run.provenance.contains("gpu.name"); }

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
