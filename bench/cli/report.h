// What a person reads: the header before, the progress line during, and the closing table after a session.
// Pure functions from records to text; console.h prints them.
#pragma once

#include <string>

#include "bench/options.h"
#include "bench/run_record.h"
#include "bench/session.h"
#include "bench/train/setup.h"

namespace hvd::bench {

/// Where the session's runs are: the store's file, or empty with --no-db.
struct StoredIn {
  std::string file;
  std::string problem;  ///< why they are not there, if they are not
};

/// What is going to run, for how long, and where it will be stored; known before anything is built.
/// `partial`: the file that holds what is stored until the end, for whoever has to look for it; empty: none.
std::string plan_text(const Options& options, const Setup& setup, const std::string& partial = {});
/// On what it runs, and how gradients travel; known when the runs begin. `run`: of the session's main phase.
std::string world_text(const Options& options, const RunRecord& run);

/// One line, no newline: "measuring full: step 12, 4.96 images/s +- 1.2 %, about 40 s left".
std::string progress_text(const Progress& progress);

/// The tables after the run, without the total line.
std::string closing_text(const SessionResult& result, const StoredIn& stored);

/// The run that the session is about: phase full if it was measured, else the last. Null when there is none.
const RunRecord* headline(const SessionResult& result);

/// "total images/sec: 1234.56": scripts look for exactly this.
std::string total_line(double images_per_second);

/// "1.23 GiB". "123 MiB".
std::string bytes_text(double bytes);
/// "45 s", "3 min", "2 h 10 min".
std::string duration_text(double seconds);

}  // namespace hvd::bench
