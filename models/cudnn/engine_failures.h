// cuDNN engines that failed to run on a GPU, and the reports in which ranks tell one another about them, so that ranks
// with equal GPUs make equal plans. Plain data; pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace hvd::models::cudnn {

struct Plan;

/// The reason why an engine does not run, one line, by the group's signature() and by EngineChoice::text().
using EngineFailures = std::map<std::string, std::map<std::string, std::string>>;

/// Returns the reason why `choice` does not run for `signature`, or null if no failure is known.
const std::string* find_failure(const EngineFailures& failures, const std::string& signature,
                                const std::string& choice);
/// Adds an entry: cuBLASLt does not multiply the columns of images (Images::kColumns). Reports tell other ranks.
void note_columns_failure(EngineFailures& failures, const std::string& why);
/// Returns the reason in the entry of note_columns_failure(), or null.
const std::string* columns_failure(const EngineFailures& failures);
/// Adds those entries of `from` to `to` that it lacks. Returns true if there were any.
bool merge_failures(EngineFailures& to, const EngineFailures& from);

/// How a report describes a plan's groups: by a hash, which shows whether they differ, or in full (some hundred KB).
enum class Detail : std::uint8_t { kHash, kGroups };
/// Returns a rank's report: its GPU and cuDNN version, its plan's groups, and failures found since the plan was made.
std::string report_text(const Plan& plan, const EngineFailures& found, Detail detail);

struct Findings {
  bool any = false;         ///< some rank found a failure, so all ranks plan again
  EngineFailures failures;  ///< found on GPUs like `plan`'s, with the same cuDNN
  /// One line about the first two ranks with equal GPUs and cuDNN but different groups. Empty: there are none.
  std::string difference;
};
/// `reports`: by rank, this rank's included. `any` and `difference` are the same on all ranks.
Findings read_reports(const std::vector<std::string>& reports, const Plan& plan);

}  // namespace hvd::models::cudnn
