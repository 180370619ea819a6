#include "bench/cli/analyse/command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <utility>

#include "bench/cli/analyse/analysis.h"
#include "bench/cli/analyse/samples_text.h"
#include "bench/cli/bounded_text.h"
#include "bench/cli/console.h"
#include "bench/cli/registrar.h"
#include "bench/cli/report.h"
#include "bench/store/build_info.h"
#include "bench/store/provenance.h"
#include "bench/store/result_store.h"
#include "bench/world/option_table.h"
#include "engine/base/error.h"

namespace hvd::bench {
namespace {

constexpr const char* kAnalyseDescription =
    "hvd_bench analyse SAMPLES computes what a training of another program lost where, prints the table of\n"
    "--efficiency, and stores the runs. hvdb.torch_efficiency writes SAMPLES (-: standard input).";

std::string title(const RunRecord& full) {
  return fmt::format(
      "{}\n  analysing  {}, {} {} a step per rank, {} on {}\n  on         {} ranks, {} host{}, {} over {}\n",
      version_text(), full.model, full.batch_size, full.unit, full.compute_type, full.device, full.world_size,
      full.nodes, full.nodes == 1 ? "" : "s", full.schedule, full.comm);
}

}  // namespace

AnalyseCommand parse_analyse(const std::vector<std::string>& argv) {
  AnalyseCommand command;
  OptionTable table;
  table.group("Results");
  table.path("--db", "FILE", "SQLite store to which the runs are added (created if absent)", {}, command.db_file);
  CLI::App app(kAnalyseDescription, "hvd_bench analyse");
  const std::vector<std::string> rest = parse_own_options(app, table, argv, command.help);
  if (!command.help.empty()) return command;
  for (const std::string& word : rest) {
    if (word != "-" && word.starts_with("-")) {
      throw Error(Errc::kInvalidArgument, fmt::format("'{}': 'hvd_bench analyse' takes no such option; see hvd_bench "
                                                      "analyse --help",
                                                      word));
    }
  }
  if (rest.size() != 1 || command.db_file.empty()) {
    throw Error(Errc::kInvalidArgument,
                "analyse needs both: one file of samples and a store, hvd_bench analyse SAMPLES --db FILE");
  }
  command.samples_file = rest.front();
  return command;
}

Analysed analyse(const AnalyseCommand& command, const std::vector<std::string>& argv, const ProcessStart& start) {
  const std::string file = command.samples_file == "-" ? kStandardInput : command.samples_file;
  SamplesText samples = parse_samples(read_text(file, kMaxSamplesBytes), file);
  const std::string session = new_uuid();
  ResultStore store(command.db_file, session, quoted_command_line(argv, start));
  const SessionResult result = analyse_samples(std::move(samples), program_facts(argv, start), session);
  for (const RunRecord& run : result.runs) store.save(run);
  Analysed analysed{.text = title(result.runs.back()), .warning = store.note(), .problem = {}};
  try {
    store.finish();
  } catch (const Error& error) {
    analysed.problem = error.what();
  }
  analysed.text += closing_text(result, {store.target().string(), analysed.problem});
  analysed.text += total_line(result.runs.back()) + "\n";
  return analysed;
}

}  // namespace hvd::bench
