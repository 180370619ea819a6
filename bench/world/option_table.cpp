#include "bench/world/option_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/error.h"

namespace hvd::bench {

OptionRow& OptionTable::value(const char* names, const char* placeholder, const char* help, Uses uses, Set set) {
  rows_.push_back({names, "text", placeholder, help, group_, std::move(set), std::move(uses)});
  return rows_.back();
}

void OptionTable::flag(const char* names, const char* help, Uses uses, std::function<void()> set) {
  value(names, "", help, std::move(uses), [set = std::move(set)](const std::string&) { set(); }).kind = "flag";
}

void OptionTable::number(const char* names, const char* placeholder, const char* help, Uses uses, double low,
                         double high, std::function<void(double)> set) {
  OptionRow& row = value(names, placeholder, help, std::move(uses), [=, set = std::move(set)](const std::string& text) {
    set(parse_number(names, text, low, high));
  });
  row.kind = "number";
  row.uses.pattern = "[0-9.eE+-]+";
  row.low = json_number(low);
  row.high = json_number(high);
}

void OptionTable::word(const char* names, const char* placeholder, const char* help, Uses uses,
                       std::vector<std::string> words, std::function<void(std::size_t)> set) {
  OptionRow& row = value(names, placeholder, help, std::move(uses),
                         [=, set = std::move(set)](const std::string& text) { set(parse_word(names, text, words)); });
  row.kind = "word";
  row.uses.pattern = "[a-z0-9]+";
  row.words = std::move(words);
}

void OptionTable::path(const char* names, const char* placeholder, const char* kind, const char* help, Uses uses,
                       std::string& target) {
  if (!uses.text) uses.text = [&target] { return target.empty() ? "not given" : "given"; };
  value(names, placeholder, help, std::move(uses), [names, kind, &target](const std::string& text) {
    if (text.empty()) throw Error(Errc::kInvalidArgument, fmt::format("{}: the {}'s name is empty", names, kind));
    target = text;
  }).kind = kind;
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
