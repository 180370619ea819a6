#include "models/cudnn/plan/engine_failures.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <sstream>

#include "models/cudnn/plan/plan.h"

namespace hvd::models::cudnn {
namespace {

// The keys of the failure of columns (note_columns_failure()), in place of a signature and an engine's text.
constexpr const char *kColumnsOfImages = "columns of images", *kCublasLt = "cublaslt";
// First character of a rank's text. kDone: the work is done. kError + n: the error with code n ended the work.
constexpr char kDone = '.', kError = 'A';

}  // namespace

const std::string* find_failure(const EngineFailures& failures, const std::string& signature,
                                const std::string& choice) {
  const auto group = failures.find(signature);
  if (group == failures.end()) return nullptr;
  const auto found = group->second.find(choice);
  return found == group->second.end() ? nullptr : &found->second;
}

void note_columns_failure(EngineFailures& failures, const std::string& why) {
  failures[kColumnsOfImages].emplace(kCublasLt, why);
}

const std::string* columns_failure(const EngineFailures& failures) {
  return find_failure(failures, kColumnsOfImages, kCublasLt);
}

bool merge_failures(EngineFailures& to, const EngineFailures& from) {
  bool fresh = false;
  for (const auto& [signature, choices] : from) {
    for (const auto& [choice, why] : choices) fresh = to[signature].emplace(choice, why).second || fresh;
  }
  return fresh;
}

void throw_unreadable(std::size_t rank) {
  throw ErrorOfAllRanks(rank, Errc::kMismatch,
                        "what it says of its engines cannot be read; start the same program on all ranks");
}

std::vector<std::string> on_all_ranks(const ExchangeTexts& exchange, const std::function<std::string()>& work) {
  if (!exchange) return {work()};
  std::string mine;
  try {
    mine = kDone + work();
  } catch (const std::exception& error) {
    const auto* const known = dynamic_cast<const Error*>(&error);
    mine = static_cast<char>(kError + static_cast<int>(known == nullptr ? Errc::kBackend : known->code()));
    mine += error.what();
  }
  std::vector<std::string> texts = exchange(mine);
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    const int code = texts[rank].empty() ? -1 : texts[rank].front() - kError;
    const bool failed = code >= 0 && code <= static_cast<int>(Errc::kBackend);  // kBackend is the last code
    if (failed) throw ErrorOfAllRanks(rank, static_cast<Errc>(code), texts[rank].substr(1));
    if (!texts[rank].starts_with(kDone)) throw_unreadable(rank);
    texts[rank].erase(0, 1);
  }
  return texts;
}

std::string machine_text(const Plan& plan) { return plan.device + ", cuDNN " + plan.cudnn; }

std::string report_text(const Report& report) {
  std::string text = report.machine + "\n" + report.program + "\n";
  for (const auto& [signature, choices] : report.failures) {
    for (const auto& [choice, why] : choices) {
      std::string line = fmt::format("{}\t{}\t{}", signature, choice, why);
      std::replace(line.begin(), line.end(), '\n', ' ');
      text += line + "\n";
    }
  }
  return text;
}

std::vector<Report> parse_reports(const std::vector<std::string>& texts) {
  std::vector<Report> reports(texts.size());
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    Report& report = reports[rank];
    std::istringstream lines(texts[rank]);
    std::string signature, choice, why;
    bool good = std::getline(lines, report.machine) && std::getline(lines, report.program) && !report.program.empty();
    while (good && std::getline(lines, signature, '\t')) {
      good = std::getline(lines, choice, '\t') && std::getline(lines, why);
      report.failures[signature][choice] = why;
    }
    if (!good) throw_unreadable(rank);
  }
  return reports;
}

bool agree(const std::vector<Report>& reports, bool again) {
  bool equal = true;
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    const Report& its = reports[rank];
    const auto first = std::find_if(reports.begin(), reports.end(),
                                    [&](const Report& report) { return report.machine == its.machine; });
    equal = equal && its.program == first->program && its.failures == first->failures;
    if (again && !its.failures.empty()) {
      const auto& [signature, engines] = *its.failures.begin();
      const auto& [engine, why] = *engines.begin();
      throw ErrorOfAllRanks(
          rank, Errc::kBackend,
          fmt::format("engine {} does not run {} on {} ({}) in a second plan, made without the engines "
                      "that had failed before; use a lower --fusion-level, or leave out this GPU",
                      engine, signature, its.machine, why));
    }
    if (again && its.program != first->program) {
      throw ErrorOfAllRanks(rank, Errc::kMismatch,
                            "its plan (" + its.program + ") differs from that of rank " +
                                std::to_string(first - reports.begin()) + " (" + first->program +
                                "), whose GPU is equal (" + its.machine +
                                "); give both hosts the same driver, CUDA Toolkit and cuDNN");
    }
  }
  return equal;
}

}  // namespace hvd::models::cudnn
