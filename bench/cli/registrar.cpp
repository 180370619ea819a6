#include "bench/cli/registrar.h"

#include <fmt/format.h>

#include <vector>

#include "bench/cli/json_writer.h"
#include "bench/coll/coll_table.h"
#include "bench/world/training_options.h"
#include "engine/base/error.h"

namespace hvd::bench {
namespace {

void take(OptionRow& row, const std::string& text) {
  if (text.starts_with("--") && !row.repeated) {
    throw Error(Errc::kInvalidArgument, fmt::format("{}: the value is missing (found {})", row.names, text));
  }
  row.set(text);
  row.given = true;
}

/// What `hvdb rerun` does with the option of a stored command.
const char* rerun_of(const OptionRow& row) {
  if (row.is(kRerun)) return "repeat";
  if (row.is(kRerunWithout)) return "leave out";
  return row.is(kRerunWithOther) ? "name another file" : "refuse";
}

void describe(JsonWriter& out, const OptionRow& row) {
  out.text("names", row.names);
  out.text("group", row.group);
  out.text("kind", row.kind);
  out.text("value", row.placeholder);
  out.text("help", row.help);
  if (!row.low.empty()) out.raw("low", row.low);
  if (!row.high.empty()) out.raw("high", row.high);
  if (!row.words.empty()) {
    out.array("words", [&](JsonWriter& words) {
      for (const std::string& word : row.words) words.element(word);
    });
  }
  out.truth("equal_on_all_ranks", row.is(kEqual));
  if (*row.uses.fact != 0) out.text("fact", row.uses.fact);
  out.truth("in_fingerprint", row.is(kFingerprint));
  out.truth("train_only", row.is(kTrainOnly));
  out.truth("campaign", row.is(kCampaign));
  out.text("decided_by", row.uses.decided);
  out.text("rerun", rerun_of(row));
  out.text("pattern", row.is(kRerun) ? row.uses.pattern : "");
}

}  // namespace

void register_options(CLI::App& app, OptionTable& table) {
  for (OptionRow& row : table.rows()) {
    CLI::Option* option = nullptr;
    if (row.placeholder[0] == 0) {
      option = app.add_flag_callback(
          row.names, [&row] { take(row, {}); }, row.help);
    } else if (row.repeated) {
      const auto take_all = [&row](const std::vector<std::string>& texts) {
        for (const std::string& text : texts) take(row, text);
      };
      option = app.add_option_function<std::vector<std::string>>(row.names, take_all, row.help);
      option->type_size(1)->allow_extra_args(false)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    } else {
      option = app.add_option_function<std::string>(
          row.names, [&row](const std::string& text) { take(row, text); }, row.help);
      option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    }
    if (row.placeholder[0] != 0) option->type_name(row.placeholder);
    option->group(row.group);
  }
}

std::string describe_options() {
  Options options;
  ValidateOptions validate;
  std::string text = "{";
  JsonWriter out(text, 1);
  const auto write = [&](const char* command, OptionTable table) {
    out.array(command, [&](JsonWriter& rows) {
      for (const OptionRow& row : table.rows()) rows.object({}, [&](JsonWriter& one) { describe(one, row); });
    });
  };
  write("train", training_table(options));
  write("validate", validation_table(validate));
  coll::CollOptions coll;
  write("coll", coll::coll_table(coll));
  return text + "\n}\n";
}

}  // namespace hvd::bench
