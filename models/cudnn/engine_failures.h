// Engines of cuDNN that turned out not to run on a GPU, and what ranks tell one another of them, so that all of them
// plan again alike. Plain data; pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace hvd::models::cudnn {

struct Plan;

/// Why an engine does not run, in one line, by the group's signature() and EngineChoice::text().
using EngineFailures = std::map<std::string, std::map<std::string, std::string>>;

/// Why `choice` of `signature` does not run; null: nothing is known against it.
const std::string* find_failure(const EngineFailures& failures, const std::string& signature,
                                const std::string& choice);
/// Among engines, as they are told to other ranks: cuBLASLt does not multiply the columns of images (Images::kColumns).
void note_columns_failure(EngineFailures& failures, const std::string& why);
/// Why; null: nothing is known against it.
const std::string* columns_failure(const EngineFailures& failures);
/// Adds `from` to `to`, which keeps what it has. Returns whether anything was new.
bool merge_failures(EngineFailures& to, const EngineFailures& from);

/// What a rank tells the others: its GPU and cuDNN, the groups of its plan (some hundred kilobytes, or a hash that says
/// whether they differ), and what `found` adds to the failures that the plan was made with.
enum class Detail : std::uint8_t { kHash, kGroups };
std::string report_text(const Plan& plan, const EngineFailures& found, Detail detail);

struct Findings {
  bool any = false;         ///< some rank found a failure: all plan again
  EngineFailures failures;  ///< found on GPUs like `plan`'s, with the same cuDNN
  /// The first two ranks with equal GPUs whose plans have different groups, in one line; empty: there are none.
  std::string difference;
};
/// `reports`: [rank], this rank's as well. `any` and `difference` are the same on all ranks.
Findings read_reports(const std::vector<std::string>& reports, const Plan& plan);

}  // namespace hvd::models::cudnn
