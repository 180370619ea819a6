// Writes the results of `hvd_bench coll` to standard output, the files of -J and --csv, and the store of --db. Used on
// rank 0 only, by one thread at a time.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "bench/cli/console.h"
#include "bench/coll/options.h"
#include "bench/coll/result.h"
#include "bench/store/result_store.h"
#include "bench/store/run_record.h"

namespace hvd::bench {

/// Call before measuring. Errors: io if the file of -J or --csv cannot be written; invalid_argument if the store of
/// --db is one of these files.
void check_coll_outputs(const coll::CollOptions& options);

/// The store of --db. Writes nothing to the file before put().
class CollStore {
 public:
  /// Collects provenance. Errors: those of ResultStore's constructor.
  CollStore(const std::string& file, const std::vector<std::string>& argv, const ProcessStart& start);
  /// Stores a session that has ended. Waits up to `patience` for another program's lock. Errors: io; the text names the
  /// file that keeps the results instead, if there is one.
  void put(const coll::CollOptions& options, const coll::CollResult& result, std::chrono::milliseconds patience);
  /// Absolute path of the store.
  [[nodiscard]] std::string file() const { return store_.target().string(); }
  /// ResultStore::note().
  [[nodiscard]] const std::string& note() const { return store_.note(); }

 private:
  const std::string session_uuid_ = new_uuid();
  ResultStore store_;
  const Provenance provenance_;
};

/// Arguments of put_coll_outputs(), all borrowed.
struct CollOutput {
  const coll::CollOptions& options;
  const std::vector<std::string>& argv;
  const Environment& environment;
  Console& console;
  CollStore* store;  ///< null: --db was not given
};

/// Prints the table and writes the files and the store. An error in one of these outputs does not stop the others.
/// `patience` is passed to CollStore::put(). Errors: the first error of an output, usually io.
void put_coll_outputs(const CollOutput& output, const coll::CollResult& result, std::chrono::milliseconds patience);

}  // namespace hvd::bench
