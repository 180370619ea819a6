// Parts that the tests of the store share: a test case, an example of a run, and comparisons of stores.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "bench/measure/resample.h"
#include "bench/store/result_store.h"
#include "bench/store/sqlite_handle.h"
#include "tests/bench/scratch.h"

namespace hvd::bench::store_test {

namespace fs = std::filesystem;

inline RunRecord example(const std::string& session) {
  RunRecord run;
  run.uuid = new_uuid();
  run.session_uuid = session;
  run.started_utc = utc_now();
  run.model = "vgg16";
  run.batch_size = 4;
  run.image_size = 32;
  run.device = "cpu";
  run.compute_type = run.allreduce_type = "fp32";
  run.schedule = "static";
  run.comm = "mpi";
  run.data_plane = "shm";
  run.world_size = run.allocation_size = 2;
  run.images_per_second = Estimate{120.5, 119, 122};
  run.provenance["cpu.model"] = {"it's \"quoted\"", true};
  run.ranks.resize(2);
  for (int r = 0; r < 2; ++r) {
    RankRecord& rank = run.ranks[static_cast<std::size_t>(r)];
    rank.rank = r;
    rank.host = "n" + std::to_string(r);
    rank.samples.step = {0.5, 0.25, 0.125};
    rank.samples.loss = {2.5, 2.25, 1.0};
  }
  run.step_replicates.assign(kStoredReplicates, 0.25);
  run.efficiency_replicates.assign(kStoredReplicates, 0.875);
  run.decomposition = {{"efficiency", 0.9, 0.45, 0.88, 0.92}, {"residual", 0.1, 0.05, std::nullopt, std::nullopt}};
  run.operations = {{"conv1", "conv", "brgconv", true, 0.001, 1e9, 1e6}};
  return run;
}

/// A test with a folder of its own, a session, and the path of the session's store.
class StoreTest : public testing::Test {
 protected:
  /// Runs `act`, which must throw an Error with code kIo. Returns the error's text.
  template <class Act>
  static std::string io_error(Act&& act) {
    return test::error_of(Errc::kIo, std::forward<Act>(act));
  }

  /// Saves an example of a run in a new session and publishes the session.
  static void publish_example(const fs::path& target) {
    const std::string its = new_uuid();
    ResultStore store(target, its, "x");
    store.save(example(its));
    store.finish();
  }

  const test::Folder folder_;
  const fs::path file_ = folder_ / "a.db";
  const std::string session_ = new_uuid();
};

/// Returns "ok" if SQLite finds the store sound and its rows within the CHECKs of the schema; otherwise the first
/// fault.
inline std::string integrity(const fs::path& file) {
  Database database(file, Locking::kShared, false);
  database.run("PRAGMA ignore_check_constraints = OFF");
  return database.text("PRAGMA integrity_check");
}

inline std::int64_t count(const fs::path& file, const std::string& sql) {
  Database database(file, Locking::kShared, false);
  return database.integer(sql);
}

/// Compares the rows of the store `file` with the rows of a new store in which each of `runs` was saved once. Returns
/// the differences, or "" if there are none.
inline std::string difference(const fs::path& file, const std::vector<RunRecord>& runs) {
  const test::Folder folder;
  ResultStore expected(folder / "expected.db", runs.at(0).session_uuid, "x");
  for (const RunRecord& run : runs) expected.save(run);
  Database database(file, Locking::kShared, false);
  database.run("ATTACH '" + expected.partial().string() + "' AS expected");
  std::string text;
  for (const std::string table : {"run", "provenance", "rank", "sample", "decomposition", "operation"}) {
    const auto missing = [&](const std::string& from, const std::string& in) {
      return database.integer("SELECT count(*) FROM (SELECT * FROM " + from + "." + table + " EXCEPT SELECT * FROM " +
                              in + "." + table + ")");
    };
    const std::int64_t lacks = missing("expected", "main"), extra = missing("main", "expected");
    if (lacks + extra > 0)
      text += table + ": " + std::to_string(lacks) + " lacking, " + std::to_string(extra) + " extra; ";
  }
  if (database.text("PRAGMA main.integrity_check") != "ok") text += "damaged; ";
  if (database.integer("SELECT count(*) FROM pragma_foreign_key_check") > 0) text += "foreign keys; ";
  return text;
}

}  // namespace hvd::bench::store_test
