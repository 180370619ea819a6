// cuDNN engines that failed to run on a GPU, and the reports in which ranks tell one another about them, so that ranks
// with equal GPUs make equal plans. Plain data; pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace hvd::models::cudnn {

struct Plan;

/// The one-line reason why an engine does not run, by the group's signature() and by EngineChoice::text().
using EngineFailures = std::map<std::string, std::map<std::string, std::string>>;

/// Returns the reason why `choice` does not run for `signature`, or null if no failure is known.
const std::string* find_failure(const EngineFailures& failures, const std::string& signature,
                                const std::string& choice);
/// Adds a failure: cuBLASLt does not multiply the columns of images (Images::kColumns). Reports pass it on.
void note_columns_failure(EngineFailures& failures, const std::string& why);
/// Returns the reason that note_columns_failure() added, or null.
const std::string* columns_failure(const EngineFailures& failures);
/// Adds to `to` those entries of `from` that `to` does not have yet. Returns true if there were any.
bool merge_failures(EngineFailures& to, const EngineFailures& from);

/// How a report describes a plan's groups: as a hash, which shows whether plans differ, or in full (some hundred KB).
enum class Detail : std::uint8_t { kHash, kGroups };
/// Returns a rank's report: its GPU and cuDNN version, its plan's groups, and failures found since the plan was made.
std::string report_text(const Plan& plan, const EngineFailures& found, Detail detail);

struct Findings {
  bool any = false;         ///< some rank found a failure, so all ranks plan again
  EngineFailures failures;  ///< failures on GPUs of the same kind as `plan`'s, with the same cuDNN
  /// One line about the first two ranks with equal GPUs and cuDNN but different groups. Empty: there are none.
  std::string difference;
};
/// `reports`: by rank, including this rank's report. `any` and `difference` are the same on all ranks.
Findings read_reports(const std::vector<std::string>& reports, const Plan& plan);

}  // namespace hvd::models::cudnn
