// The options of a command of hvd_bench, one row each. From a row come the option of the command line with its --help,
// the comparison over ranks, a fact of the record, and what Python reads in results/options.json.
#pragma once

#include <cstdint>
#include <functional>
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
  kTrainOnly = 256        ///< `hvd_bench validate` refuses it
};

struct Uses {
  unsigned in = 0;            ///< OptionUse
  const char* compared = "";  ///< name in the comparison, if not the option's; of a flag: what the flag switches off
  const char* fact = "";      ///< key in the record
  const char* decided = "";   ///< the part of a campaign's spec that decides about the option
  const char* pattern = "[^/]*";           ///< with kRerun: a regular expression that all of a stored value matches
  std::function<std::string()> text = {};  ///< the present value, if not written as its kind is
};

struct OptionRow {
  const char* names;        ///< "--seed"; with a letter "-n,--iters"
  const char* kind;         ///< "flag", "integer", "number", "word", "text", "file" or "folder"
  const char* placeholder;  ///< of the value in --help
  const char* help;
  const char* group;  ///< title in --help
  std::function<void(const std::string&)> set;
  Uses uses;
  std::string low = {}, high = {};      ///< range of the kinds "integer" and "number"
  std::vector<std::string> words = {};  ///< values of the kind "word"
  bool repeated = false;                ///< may be given several times, with one value each
  bool given = false;                   ///< the user gave it

  [[nodiscard]] bool is(OptionUse use) const { return (uses.in & use) != 0; }
  [[nodiscard]] std::string name() const { return std::string(names).substr(0, std::string_view(names).find(',')); }
};

template <class T>
struct Unwrapped {
  using type = T;
};
template <class T>
struct Unwrapped<std::optional<T>> {
  using type = T;
};
template <class T>
using ValueOf = typename Unwrapped<T>::type;

/// Writes a value as comparisons and records have it.
template <class T>
std::string value_text(const T& value) {
  if constexpr (std::is_same_v<T, std::string>) {
    return value;
  } else if constexpr (std::is_floating_point_v<T>) {
    return json_number(value);
  } else if constexpr (std::is_integral_v<T>) {
    return std::to_string(value);
  } else if constexpr (requires { value.has_value(); }) {
    return value ? value_text(*value) : std::string();
  } else {
    return std::to_string(value.count());  // a duration
  }
}

/// Rows that refer to the members of a struct of options, which must outlive the table.
class OptionTable {
 public:
  using Set = std::function<void(const std::string&)>;

  /// Begins a group of options with this title in --help.
  void group(const char* title) { group_ = title; }
  OptionRow& value(const char* names, const char* placeholder, const char* help, Uses uses, Set set);
  void flag(const char* names, const char* help, Uses uses, std::function<void()> set);
  /// Sets `target` to `value`.
  template <class T>
  void flag(const char* names, const char* help, Uses uses, T& target, std::type_identity_t<T> value) {
    const bool inverse = *uses.compared != 0;
    if (!uses.text) uses.text = [=, &target] { return (target == value) != inverse ? "on" : "off"; };
    flag(names, help, std::move(uses), [=, &target] { target = value; });
  }
  template <class T>
  void integer(const char* names, const char* help, Uses uses, std::int64_t low, std::int64_t high, T& target) {
    if (!uses.text) uses.text = [&target] { return value_text(target); };
    OptionRow& row = value(names, "N", help, std::move(uses), [=, &target](const std::string& text) {
      target = static_cast<ValueOf<T>>(parse_integer(names, text, low, high));
    });
    row.kind = "integer";
    row.uses.pattern = "-?[0-9]+";
    row.low = std::to_string(low);
    row.high = std::to_string(high);
  }
  void number(const char* names, const char* placeholder, const char* help, Uses uses, double low, double high,
              std::function<void(double)> set);
  /// Sets `target`, a number or a duration, to `factor` times the value, rounded down if need be.
  template <class T>
  void number(const char* names, const char* placeholder, const char* help, Uses uses, double low, double high,
              T& target, double factor = 1) {
    if (!uses.text) uses.text = [&target] { return value_text(target); };
    number(names, placeholder, help, std::move(uses), low, high, [=, &target](double x) {
      if constexpr (std::is_convertible_v<double, ValueOf<T>>) {
        target = static_cast<ValueOf<T>>(factor * x);
      } else {
        target = T(static_cast<std::int64_t>(factor * x));
      }
    });
  }
  /// set(i) sets the option to words[i].
  void word(const char* names, const char* placeholder, const char* help, Uses uses, std::vector<std::string> words,
            std::function<void(std::size_t)> set);
  template <class T>
  void choice(const char* names, const char* placeholder, const char* help, Uses uses, T& target,
              std::vector<std::pair<const char*, ValueOf<T>>> choices);
  void text(const char* names, const char* placeholder, const char* help, Uses uses, std::string& target) {
    value(names, placeholder, help, std::move(uses), [&target](const std::string& text) { target = text; });
  }
  /// file() and folder() refuse an empty name, which is most likely an unset shell variable.
  void file(const char* names, const char* help, Uses uses, std::string& target) {
    path(names, "FILE", "file", help, std::move(uses), target);
  }
  void folder(const char* names, const char* help, Uses uses, std::string& target) {
    path(names, "FOLDER", "folder", help, std::move(uses), target);
  }

  [[nodiscard]] bool given(const std::string& name) const;  ///< `name`: the first of the option
  [[nodiscard]] std::vector<OptionRow>& rows() { return rows_; }
  /// Adds the rows that all ranks must have alike, but for those of which `settings` has a line.
  void compare(RunSettings& settings, bool on_gpus) const;
  /// Adds the rows' facts that `facts` lacks and that are not empty.
  void record(Provenance& facts, bool on_gpus) const;

 private:
  void path(const char* names, const char* placeholder, const char* kind, const char* help, Uses uses,
            std::string& target);

  const char* group_ = "";
  std::vector<OptionRow> rows_;
};

template <class T>
void OptionTable::choice(const char* names, const char* placeholder, const char* help, Uses uses, T& target,
                         std::vector<std::pair<const char*, ValueOf<T>>> choices) {
  std::vector<std::string> words;
  for (const auto& [name, value] : choices) words.emplace_back(name);
  if (!uses.text) {
    uses.text = [&target, choices] {
      for (const auto& [name, value] : choices) {
        if (target == value) return name;
      }
      return "";
    };
  }
  word(names, placeholder, help, std::move(uses), std::move(words),
       [&target, choices](std::size_t index) { target = choices[index].second; });
}

}  // namespace hvd::bench
