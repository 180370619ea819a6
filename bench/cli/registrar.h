// Registers the rows of a table of options on a CLI11 app. Used by one thread while the command line is parsed.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bench/world/option_table.h"
#include "engine/base/error.h"

namespace hvd::bench {

/// `table` must outlive the parsing of `app`. Of an option given several times the last value counts.
inline void register_options(CLI::App& app, OptionTable& table) {
  for (OptionRow& row : table.rows()) {
    const auto take = [&row](const std::string& text) {
      if (text.starts_with("--") && !row.repeated) {
        throw Error(Errc::kInvalidArgument, fmt::format("{}: the value is missing (found {})", row.names, text));
      }
      row.given = true;
      row.set(text);
    };
    if (*row.placeholder == 0) {
      app.add_flag_callback(
             row.names, [take] { take({}); }, row.help)
          ->group(row.group);
    } else if (row.repeated) {
      const auto take_all = [take](const std::vector<std::string>& texts) {
        for (const std::string& text : texts) take(text);
      };
      CLI::Option* option = app.add_option_function<std::vector<std::string>>(row.names, take_all, row.help);
      option->type_name(row.placeholder)->type_size(1)->allow_extra_args(false)->group(row.group);
      option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    } else {
      CLI::Option* option = app.add_option_function<std::string>(row.names, take, row.help);
      option->type_name(row.placeholder)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)->group(row.group);
    }
  }
}

/// Parses the command line of a command that has options of its own. `argv` starts with the program's name and the
/// command. Returns the words that `app` does not know. If the user asks for help, sets `help`.
/// Errors: invalid_argument; those of the options.
inline std::vector<std::string> parse_own_options(CLI::App& app, OptionTable& table,
                                                  const std::vector<std::string>& argv, std::string& help) {
  app.set_help_flag("-h,--help", "Print this and exit")->group("Help");
  app.get_formatter()->column_width(32);
  app.allow_extras();
  register_options(app, table);
  std::vector<std::string> arguments(argv.rbegin(), argv.rend() - 2);  // CLI11 expects them in reverse order
  try {
    app.parse(std::move(arguments));
  } catch (const CLI::CallForHelp&) {
    help = app.help();
    return {};
  } catch (const CLI::ParseError& error) {
    throw Error(Errc::kInvalidArgument, fmt::format("{}; see {} --help", error.what(), app.get_name()));
  }
  return app.remaining();
}

}  // namespace hvd::bench
