#include "models/cudnn/engine_failures.h"

#include <algorithm>
#include <sstream>
#include <string_view>

#include "engine/base/hash.h"
#include "models/cudnn/plan.h"

namespace hvd::models::cudnn {
namespace {

constexpr std::string_view kGroup = "group ", kFailed = "failed ";
// An entry about columns of images has these texts in place of a signature and of an engine's text.
constexpr const char *kColumnsOfImages = "columns of images", *kCublasLt = "cublaslt";

std::string machine_text(const Plan& plan) { return plan.device + ", cuDNN " + plan.cudnn; }

/// The contents of a report_text().
struct Report {
  std::string machine;
  std::vector<std::string> groups;
  EngineFailures found;
};

Report parse_report(const std::string& text) {
  Report report;
  std::istringstream lines(text);
  std::getline(lines, report.machine);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(kGroup)) {
      report.groups.push_back(line.substr(kGroup.size()));
    } else if (line.starts_with(kFailed)) {
      std::istringstream parts(line.substr(kFailed.size()));
      std::string signature, choice, why;
      std::getline(parts, signature, '\t');
      std::getline(parts, choice, '\t');
      std::getline(parts, why);
      report.found[signature][choice] = why;
    }
  }
  return report;
}

std::string difference_text(const Report& a, std::size_t rank_a, const Report& b, std::size_t rank_b) {
  const auto [in_a, in_b] = std::mismatch(a.groups.begin(), a.groups.end(), b.groups.begin(), b.groups.end());
  const auto told = [](const Report& of, auto at) { return at == of.groups.end() ? "none" : "\"" + *at + "\""; };
  return "rank " + std::to_string(rank_a) + " and rank " + std::to_string(rank_b) + " have equal GPUs (" + a.machine +
         ") and plan different steps: launch " + std::to_string(in_a - a.groups.begin()) + " is " + told(a, in_a) +
         " on the first and " + told(b, in_b) +
         " on the second; give both hosts the same driver, CUDA Toolkit and cuDNN";
}

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

std::string report_text(const Plan& plan, const EngineFailures& found, Detail detail) {
  std::string text = machine_text(plan) + "\n";
  Hasher hasher;
  for (const Group& group : plan.program.groups) {
    const std::string of = signature(plan.program, group);
    if (detail == Detail::kGroups) text.append(kGroup).append(of).append("\n");
    hasher.text(of);
  }
  if (detail == Detail::kHash) text.append(kGroup).append(hex64(hasher.value())).append("\n");
  for (const auto& [signature, choices] : found) {
    for (const auto& [choice, why] : choices) {
      text.append(kFailed).append(signature).append("\t").append(choice).append("\t").append(why).append("\n");
    }
  }
  return text;
}

Findings read_reports(const std::vector<std::string>& reports, const Plan& plan) {
  Findings findings;
  std::map<std::string, std::pair<std::size_t, Report>> first_of;  // by machine: its first rank and report
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    Report report = parse_report(reports[rank]);
    findings.any = findings.any || !report.found.empty();
    if (report.machine == machine_text(plan)) merge_failures(findings.failures, report.found);
    const auto [first, is_first] = first_of.try_emplace(report.machine, rank, report);
    if (is_first || !findings.difference.empty() || report.groups == first->second.second.groups) continue;
    findings.difference = difference_text(first->second.second, first->second.first, report, rank);
  }
  return findings;
}

}  // namespace hvd::models::cudnn
