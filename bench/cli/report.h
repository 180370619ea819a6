// The texts that a person reads (the header before a session, the progress line during it, the closing table after it)
// and the JSON document for programs. Pure functions from records to text; console.h prints them.
#pragma once

#include <iosfwd>
#include <string>

#include "bench/session/session.h"
#include "bench/session/validation.h"
#include "bench/store/run_record.h"
#include "bench/store/stored_labels.h"
#include "bench/world/options.h"
#include "bench/world/setup.h"

namespace hvd::bench {

/// Says where the session's runs are stored: in a file, or nowhere with --no-db.
struct StoredIn {
  std::string file;
  std::string problem;  ///< why the runs are not in the file; empty if they are
};

/// Says what will run, for how long, and where the results will be stored. All of this is known before the network is
/// built. `partial` is the file that holds the rows until the session ends, or "". The text shows it, so that a user
/// can find the file.
std::string plan_text(const Options& options, const Setup& setup, const std::string& partial = {});
/// Says which ranks and hosts train and how gradients are reduced. This is known when the runs begin. `run` is the run
/// of the main phase.
std::string world_text(const Options& options, const RunRecord& run);

/// Returns one line without a newline: "measuring full: step 12, 4.96 images/s +- 1.2 %, about 40 s left".
std::string progress_text(const Progress& progress);

/// Returns the tables that are printed after the session. They do not include total_line(). With `verbose` the
/// explanations of the figures follow, which the store holds in any case.
std::string closing_text(const SessionResult& result, const StoredIn& stored, bool verbose = false);

/// Returns the main run of the session: the run of phase full if there is one, else the last run. Null without runs.
const RunRecord* headline(const SessionResult& result);

/// Returns "total images/sec: 1234.56", with the run's unit of work in place of images. Scripts look for a line of
/// exactly this form. `run` must have a rate.
std::string total_line(const RunRecord& run);

/// Returns a table of the ranks of `hvd_bench validate`, the slowest first, and one line per finding. If there are many
/// ranks, the table shows only some.
std::string validation_text(const Validation& validation);

/// Prints what `hvd_bench stored` found: the values, one per line, and the problems on standard error. Returns the exit
/// code: 2 if there are problems.
int print_stored_labels(const StoredLabels& labels, std::ostream& out);

/// Renders the session as one JSON document for --json. The fields of run records have the names that
/// results/schema.sql gives them. Samples are omitted; the store has them. NaN and infinities become null.
std::string json_report(const SessionResult& result, const StoredIn& stored);

}  // namespace hvd::bench
