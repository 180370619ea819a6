// cuDNN engines that failed to run on a GPU, and how ranks agree to leave these engines out of plans. Each rank finds a
// plan that runs and sends one report to all ranks. All ranks draw the same conclusion from the reports. Pure, except
// on_all_ranks().
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "engine/base/error.h"

namespace hvd::models {

/// Collective. Takes this rank's text and returns the texts of all ranks, by rank. If the function throws an error,
/// make_cudnn_step() throws it too.
using ExchangeTexts = std::function<std::vector<std::string>(const std::string& mine)>;

/// An error that make_cudnn_step() throws on every rank, with the same text, for example "rank 1: " and the reason why
/// rank 1 cannot go on.
class ErrorOfAllRanks : public Error {
 public:
  ErrorOfAllRanks(std::size_t rank, Errc code, const std::string& why)
      : Error(code, "rank " + std::to_string(rank) + ": " + why), rank_(rank) {}
  [[nodiscard]] std::size_t rank() const noexcept { return rank_; }

 private:
  std::size_t rank_;
};

}  // namespace hvd::models

namespace hvd::models::cudnn {

struct Plan;

/// The one-line reasons why engines do not run. Keys: the group's signature(), then the engine's EngineChoice::text().
using EngineFailures = std::map<std::string, std::map<std::string, std::string>>;

/// Returns the reason why `choice` does not run for `signature`, or null if no failure is known.
const std::string* find_failure(const EngineFailures& failures, const std::string& signature,
                                const std::string& choice);
/// Adds the failure that cuBLASLt does not multiply the columns of images (ImageLayout::kColumns). Reports include this
/// failure.
void note_columns_failure(EngineFailures& failures, const std::string& why);
/// Returns the reason that note_columns_failure() added, or null.
const std::string* columns_failure(const EngineFailures& failures);
/// Adds to `to` those entries of `from` that `to` does not have yet. Returns true if any entry was added.
bool merge_failures(EngineFailures& to, const EngineFailures& from);

/// Collective. Returns the texts that `work` returns on all ranks, by rank. If `work` throws on any rank, every rank
/// throws ErrorOfAllRanks with the error of the lowest rank on which `work` threw. If `exchange` is null, errors of
/// `work` pass unchanged.
std::vector<std::string> on_all_ranks(const ExchangeTexts& exchange, const std::function<std::string()>& work);
/// Throws mismatch, as ErrorOfAllRanks. Call this function on all ranks if the text that `rank` sent cannot be read.
[[noreturn]] void throw_unreadable(std::size_t rank);

/// A rank's message to the other ranks about its plan.
struct Report {
  std::string machine;      ///< machine_text()
  std::string program;      ///< program_hash(), in hexadecimal
  EngineFailures failures;  ///< found since this rank's last report
};
/// Names the plan's GPU and cuDNN version. If two ranks have equal texts, their plans must be equal.
std::string machine_text(const Plan& plan);
std::string report_text(const Report& report);
/// Parses one report per rank. Errors: see throw_unreadable().
std::vector<Report> parse_reports(const std::vector<std::string>& texts);
/// Returns false if two ranks with equal machine_text() report different failures or programs. All ranks then plan once
/// more, without the engines that failed on their machine. `again`: the reports are about these second plans. Errors
/// for second plans, as ErrorOfAllRanks: backend, if an engine failed in a second plan; mismatch, if programs on equal
/// machines differ.
bool agree(const std::vector<Report>& reports, bool again);

}  // namespace hvd::models::cudnn
