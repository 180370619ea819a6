// cuDNN engines that failed to run on a GPU, and how ranks agree to leave them out. Each rank finds a plan that runs
// and sends one report to all ranks. All ranks draw the same conclusion from the reports. Pure, except on_all_ranks().
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "models/cudnn/cudnn_step.h"

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

/// Collective. Returns the texts that `work` returns on all ranks, by rank. If `work` throws on any rank, every rank
/// throws ErrorOfAllRanks with the error of the lowest such rank. If `exchange` is null, errors of `work` pass
/// unchanged.
std::vector<std::string> on_all_ranks(const ExchangeTexts& exchange, const std::function<std::string()>& work);
/// Throws mismatch, as ErrorOfAllRanks. Call it on all ranks if the text that `rank` sent cannot be read.
[[noreturn]] void throw_unreadable(std::size_t rank);

/// What a rank tells the others about its plan.
struct Report {
  std::string machine;      ///< machine_text()
  std::string program;      ///< program_hash(), in hexadecimal
  EngineFailures failures;  ///< found since the last report
};
/// The plan's GPU and cuDNN. If these are equal on two ranks, their plans must be equal.
std::string machine_text(const Plan& plan);
std::string report_text(const Report& report);
/// Errors: see throw_unreadable().
std::vector<Report> parse_reports(const std::vector<std::string>& texts);
/// Returns false if two ranks with equal machines report different failures or programs. All ranks then plan once more,
/// without the engines that failed on their machine. `again`: these reports are on the second plans. Errors for second
/// plans, as ErrorOfAllRanks: backend, if an engine failed again; mismatch, if programs differ.
bool agree(const std::vector<Report>& reports, bool again);

}  // namespace hvd::models::cudnn
