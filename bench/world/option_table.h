// The options of a command of hvd_bench, one row each. From a row come the option of the command line with its --help,
// the comparison over ranks, a fact of the record, and what Python reads in results/options.json.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "bench/store/run_record.h"
#include "bench/world/settings.h"
#include "bench/world/values.h"
#include "engine/base/json.h"

namespace hvd::bench {

/// Who takes an option. `hvdb rerun` refuses a stored command with an option that has none of the uses kRerun*.
enum OptionUse : unsigned {
  kEqual = 1,             ///< all ranks must have the same value
  kOnGpus = 2,            ///< compared and recorded in runs on GPUs only
  kFactOnCpus = 4,        ///< recorded in runs on CPUs only
  kFingerprint = 8,       ///< runs with different values of `fact` are not comparable
  kCampaign = 16,         ///< the spec of a campaign may give it
  kRerun = 32,            ///< `hvdb rerun` repeats it, if the value matches `pattern`
  kRerunWithout = 64,     ///< `hvdb rerun` leaves it out, because it decides about the output
  kRerunWithOther = 128,  ///< `hvdb rerun` takes another file than the one in the stored command
  kTrainOnly = 256,       ///< `hvd_bench validate` refuses it
  kOfBuckets = 512,       ///< only schedules with a plan of buckets use it
  kOfNegotiation = 1024   ///< only the negotiated schedule uses it
};

struct Uses {
  unsigned in = 0;            ///< OptionUse
  const char* compared = "";  ///< name in the comparison, if not the option's; of a flag: what the flag switches off
  const char* fact = "";      ///< key in the record
  const char* decided = "";   ///< the part of a campaign's spec that decides about the option
  const char* pattern = "[^/]*";           ///< with kRerun: a regular expression that all of a stored value matches
  std::function<std::string()> text = {};  ///< the present value, as comparison and record have it
  const char* variable = "";               ///< environment variable that also sets the option: "NAME (unit)"
};

struct OptionRow {
  const char* names;        ///< "--seed"; with a letter "-n,--iters"
  const char* placeholder;  ///< of the value in --help: "" for a flag, "N" for an integer, "FILE", "FOLDER", ...
  const char* help;
  const char* group;  ///< title in --help
  std::function<void(const std::string&)> set;
  Uses uses;
  std::function<void(const std::string&)> set_by_variable = {};  ///< as `set`, with the variable's name in errors
  std::string low = {}, high = {};                               ///< range of a number
  std::vector<std::string> words = {};                           ///< possible values, if these are words
  bool repeated = false;                                         ///< may be given several times, with one value each
  bool given = false;                                            ///< the user gave it

  [[nodiscard]] bool is(OptionUse use) const { return (uses.in & use) != 0; }
  [[nodiscard]] std::string name() const { return std::string(names).substr(0, std::string_view(names).find(',')); }
  [[nodiscard]] std::string variable() const {
    return std::string(uses.variable).substr(0, std::string_view(uses.variable).find(' '));
  }
};

template <class T>
T unwrapped(const T&);  // not defined; for ValueOf
template <class T>
T unwrapped(const std::optional<T>&);
template <class T>
using ValueOf = decltype(unwrapped(std::declval<T>()));

/// Writes a number or a duration as comparisons and records have it.
template <class T>
std::string value_text(const T& value) {
  if constexpr (std::is_floating_point_v<T>) return json_number(value);
  if constexpr (std::is_integral_v<T>) return std::to_string(value);
  if constexpr (requires { value.has_value(); }) return value ? value_text(*value) : std::string();
  if constexpr (requires { value.count(); }) return std::to_string(value.count());
}

/// Rows that refer to the members of a struct of options, which must outlive the table.
class OptionTable {
 public:
  /// Begins a group of options with this title in --help.
  void group(const char* title) { group_ = title; }
  OptionRow& value(const char* names, const char* placeholder, const char* help, Uses uses,
                   std::function<void(const std::string&)> set);
  template <class T>
  void flag(const char* names, const char* help, Uses uses, T& target, std::type_identity_t<T> value_if_given) {
    const bool inverse = *uses.compared != 0;
    uses.text = [=, &target] { return (target == value_if_given) != inverse ? "on" : "off"; };
    value(names, "", help, std::move(uses), [=, &target](const std::string&) { target = value_if_given; });
  }
  template <class T>
  void integer(const char* names, const char* help, const Uses& uses, std::int64_t low, std::int64_t high, T& target) {
    const auto set = [=, &target](const char* where) {
      return [=, &target](const std::string& text) {
        target = static_cast<ValueOf<T>>(parse_integer(where, text, low, high));
      };
    };
    OptionRow& row = value(names, "N", help, uses, set(names));
    row.set_by_variable = set(uses.variable);
    add_range(row, std::to_string(low), std::to_string(high), "-?[0-9]+", target);
  }
  /// Sets `target`, a number or a duration, to `factor` times the value, rounded down if need be.
  template <class T>
  OptionRow& number(const char* names, const char* placeholder, const char* help, const Uses& uses, double low,
                    double high, T& target, double factor = 1) {
    const auto set = [=, &target](const char* where) {
      return [=, &target](const std::string& text) {
        const double x = factor * parse_number(where, text, low, high);
        if constexpr (std::is_convertible_v<double, ValueOf<T>>) target = static_cast<ValueOf<T>>(x);
        if constexpr (!std::is_convertible_v<double, ValueOf<T>>) target = T(static_cast<std::int64_t>(x));
      };
    };
    OptionRow& row = value(names, placeholder, help, uses, set(names));
    row.set_by_variable = set(uses.variable);
    add_range(row, json_number(low), json_number(high), "[0-9.eE+-]+", target);
    return row;
  }
  template <class T>
  void choice(const char* names, const char* placeholder, const char* help, Uses uses, T& target,
              const std::vector<std::pair<std::string, ValueOf<T>>>& choices) {
    std::vector<std::string> words;
    words.reserve(choices.size());
    for (const auto& [word, meaning] : choices) words.push_back(word);
    uses.pattern = "[a-z0-9]+";
    if (!uses.text) {
      uses.text = [=, &target] {
        for (const auto& [word, meaning] : choices) {
          if (target == meaning) return word;
        }
        return std::string();
      };
    }
    const auto set = [=, &target](const std::string& text) { target = choices[parse_word(names, text, words)].second; };
    value(names, placeholder, help, std::move(uses), set).words = words;
  }
  /// The name of a FILE or FOLDER. Refuses an empty name, which is most likely an unset shell variable.
  void path(const char* names, const char* placeholder, const char* help, Uses uses, std::string& target);
  /// Adds --label, which may be given several times: KEY -> VALUE. The last VALUE of a KEY counts.
  void labels(Uses uses, std::map<std::string, std::string>& target);

  [[nodiscard]] bool given(const std::string& name) const;  ///< `name`: the first of the option
  [[nodiscard]] std::vector<OptionRow>& rows() { return rows_; }
  /// Adds the rows that all ranks must have alike, but for those of which `settings` has a line.
  void compare(RunSettings& settings, bool on_gpus) const;
  /// Adds the rows' facts that `facts` lacks and that are not empty.
  void record(Provenance& facts, bool on_gpus) const;

 private:
  template <class T>
  static void add_range(OptionRow& row, std::string low, std::string high, const char* pattern, const T& target) {
    row.low = std::move(low);
    row.high = std::move(high);
    row.uses.pattern = pattern;
    if (!row.uses.text) row.uses.text = [&target] { return value_text(target); };
  }

  const char* group_ = "";
  std::vector<OptionRow> rows_;
};

}  // namespace hvd::bench
