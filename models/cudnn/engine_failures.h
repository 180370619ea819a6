// cuDNN engines that failed to run on a GPU, and how ranks agree about them: each rank finds a plan that runs, reports
// it once to all others, and all ranks draw the same conclusion from the same reports. Pure, except on_all_ranks().
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "models/cudnn/cudnn_step.h"

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

/// Collective. Returns the texts that `work` returns on all ranks, by rank. If `work` throws on any rank, every rank
/// throws the error of the lowest such rank. `exchange`: as in CudnnOptions. If it is null, errors pass unchanged.
std::vector<std::string> on_all_ranks(const ExchangeTexts& exchange, const std::function<std::string()>& work);
/// Call on all ranks if the text that `rank` sent cannot be read. Errors: mismatch.
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
/// Errors: as throw_unreadable().
std::vector<Report> parse_reports(const std::vector<std::string>& texts);
/// Returns false if equal machines found different failures or have different programs. All ranks then plan once more
/// without the failures. `again`: they have done so. Errors, then: backend, if an engine fails again; mismatch, if
/// programs still differ.
bool agree(const std::vector<Report>& reports, bool again);

}  // namespace hvd::models::cudnn
