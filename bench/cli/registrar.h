// Turns tables of options into options of a CLI11 app, and into the JSON document of --describe-options.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "bench/world/option_table.h"

namespace hvd::bench {

/// `table` must outlive the parsing of `app`. An option given twice has the last value.
void register_options(CLI::App& app, OptionTable& table);

/// The options of `train`, `validate` and `coll` as one JSON document, committed as results/options.json.
std::string describe_options();

}  // namespace hvd::bench
