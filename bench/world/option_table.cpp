#include "bench/world/option_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/error.h"

namespace hvd::bench {

OptionRow& OptionTable::value(const char* names, const char* placeholder, const char* help, Uses uses,
                              std::function<void(const std::string&)> set) {
  rows_.push_back({names, placeholder, help, group_, std::move(set), std::move(uses)});
  return rows_.back();
}

void OptionTable::path(const char* names, const char* placeholder, const char* help, Uses uses, std::string& target) {
  const char* kind = placeholder == std::string_view("FILE") ? "file" : "folder";
  if (!uses.text) uses.text = [&target] { return target.empty() ? "not given" : "given"; };
  value(names, placeholder, help, std::move(uses), [names, kind, &target](const std::string& text) {
    if (text.empty()) throw Error(Errc::kInvalidArgument, fmt::format("{}: the {}'s name is empty", names, kind));
    target = text;
  }).set_by_variable = [&target](const std::string& text) { target = text; };
}

void OptionTable::labels(Uses uses, std::map<std::string, std::string>& target) {
  value("--label", "KEY=VALUE", "Stored with the run and never compared (may be given several times)", std::move(uses),
        [&target](const std::string& text) {
          constexpr std::string_view kAllowed = "abcdefghijklmnopqrstuvwxyz0123456789_.-";
          const std::size_t end = text.find('=');
          if (end == std::string::npos || end == 0 || text.find_first_not_of(kAllowed) != end) {
            throw Error(Errc::kInvalidArgument,
                        fmt::format("--label: '{}' is not KEY=VALUE with a KEY of a-z, 0-9, '_', '.', '-'", text));
          }
          target.insert_or_assign(text.substr(0, end), text.substr(end + 1));
        })
      .repeated = true;
}

bool OptionTable::given(const std::string& name) const {
  return std::any_of(rows_.begin(), rows_.end(), [&](const OptionRow& row) { return row.given && row.name() == name; });
}

void OptionTable::compare(RunSettings& settings, bool on_gpus) const {
  for (const OptionRow& row : rows_) {
    const std::string name = *row.uses.compared != 0 ? row.uses.compared : row.name();
    const bool present = std::any_of(settings.begin(), settings.end(), [&](const auto& s) { return s.first == name; });
    if (row.is(kEqual) && !present && (on_gpus || !row.is(kOnGpus))) settings.emplace_back(name, row.uses.text());
  }
}

void OptionTable::record(Provenance& facts, bool on_gpus) const {
  for (const OptionRow& row : rows_) {
    if (*row.uses.fact == 0 || row.is(on_gpus ? kFactOnCpus : kOnGpus)) continue;
    std::string text = row.uses.text();
    if (row.placeholder[0] == 0) text = text == "on" ? "yes" : "no";
    if (!text.empty()) facts.try_emplace(row.uses.fact, ProvenanceFact{std::move(text), row.is(kFingerprint)});
  }
}

}  // namespace hvd::bench
