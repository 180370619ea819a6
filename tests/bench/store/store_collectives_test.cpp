// Tests how results of collectives are saved, their fingerprints, and the facts of their launch.
#include <gtest/gtest.h>

#include <cmath>

#include "bench/coll/cells.h"
#include "bench/coll/record.h"
#include "bench/store/result_store.h"
#include "bench/store/sqlite_handle.h"
#include "engine/base/error.h"
#include "tests/bench/store/store_parts.h"

namespace hvd::bench::store_test {
namespace {

coll::CollOptions coll_options() {
  coll::CollOptions options;
  options.sizes = {1024};
  options.variants[0].name = "algorithm=ring";
  options.variants[0].comm.algorithm = comm::Algorithm::kRing;
  return options;
}

/// The result of an all-reduce of 1 KiB on two ranks, out of place and in place. The in-place cell has no samples.
coll::CollResult coll_result(const coll::CollOptions& options) {
  coll::CollResult result;
  result.world.ranks = 2;
  result.world.comm = "mpi";
  result.world.library = "a library";
  result.world.hosts = {"n1", "n1"};
  result.world.oversubscribed = true;
  result.variants = {"algorithm=ring"};
  result.started_utc = result.finished_utc = utc_now();
  result.interrupted = "SIGTERM";
  for (const coll::Cell& cell : coll::make_cells(options, 2, false)) {
    coll::CellResult cell_result;
    cell_result.cell = cell;
    cell_result.bytes = 1024;
    result.cells.push_back(std::move(cell_result));
  }
  coll::CellResult& first = result.cells.at(0);
  first.taken = {{.round = 3, .seconds = 0.5, .transfer = 0.25, .skew = 0.125, .last_rank = 1}};
  first.samples = 1;
  first.batch = 16;
  first.seconds = {0.5, kNoInterval, kNoInterval};
  first.last_rank = 1;
  first.last_share = 1;
  first.wrong = 7;
  first.bound = 0.75;
  first.plane = "ring";
  first.stop_reason = "SIGTERM";
  return result;
}

using StoredCollectives = StoreTest;

TEST_F(StoredCollectives, CollectivesAreSavedWithTheirSamples) {
  const coll::CollOptions options = coll_options();
  const coll::CollResult result = coll_result(options);
  ASSERT_EQ(result.cells.size(), 2U);
  {
    ResultStore store(file_, session_, "hvd_bench coll");
    const coll::Record record{session_, options, result, {{"cpu.model", {"it's \"quoted\"", true}}}};
    coll::save(record, store);
    coll::save(record, store);  // replaces the rows of the first save
    store.finish();
  }
  EXPECT_EQ(folder_.files(), 1U);
  EXPECT_EQ(read_store_header(file_).schema_version, 2U);
  Database database(file_, Locking::kShared, false);
  EXPECT_EQ(database.text("SELECT status || status_reason || ranks || oversubscribed || comm FROM coll_session"),
            "incompleteSIGTERM21mpi");
  EXPECT_EQ(database.text("SELECT s.command_line FROM session s JOIN coll_session USING (uuid)"), "hvd_bench coll");
  EXPECT_EQ(database.text("SELECT value || in_fingerprint FROM coll_provenance"), "it's \"quoted\"1");
  EXPECT_EQ(
      database.text("SELECT seq || operation || type || reduction || bytes || count || root || in_place || side"
                    " || algorithm || data_plane || operations_per_sample || seconds || last_rank || wrong || bound"
                    " FROM coll_cell"),
      "0all_reducefloatsum1024256-10algorithm=ringringring160.5170.75")
      << "the cell that was not sampled is left out";
  EXPECT_EQ(database.integer("SELECT seconds_low IS NULL AND seconds_high IS NULL AND ratio IS NULL FROM coll_cell"),
            1);
  EXPECT_EQ(database.text("SELECT group_concat(kind || hex(data)) FROM (SELECT * FROM coll_sample ORDER BY kind)"),
            "last_rank000000000000F03F,round0000000000000840,seconds000000000000E03F,skew_seconds000000000000C03F,"
            "transfer_seconds000000000000D03F");
  EXPECT_EQ(integrity(file_), "ok");
}

TEST_F(StoredCollectives, ATimeThatTheClockCannotTellIsUnknown) {
  const coll::CollOptions options = coll_options();
  coll::CollResult result = coll_result(options);
  result.cells[0].seconds = {0, 0, 0};
  result.cells[0].bound = HUGE_VAL;  // any time divided by a time of 0
  ResultStore store(file_, session_, "x");
  coll::save(coll::Record{session_, options, result, {}}, store);
  store.finish();
  EXPECT_EQ(count(file_, "SELECT count(*) FROM coll_cell WHERE seconds IS NULL AND bound IS NULL"), 1);
}

TEST_F(StoredCollectives, CollectivesAndRunsShareAStore) {
  const coll::CollOptions options = coll_options();
  const coll::CollResult result = coll_result(options);
  const auto add_collectives = [&] {
    const std::string its = new_uuid();
    ResultStore store(file_, its, "x");
    coll::save(coll::Record{its, options, result, {}}, store);
    store.finish();
  };
  publish_example(file_);
  EXPECT_EQ(read_store_header(file_).schema_version, 1U) << "older programs read stores of runs";
  add_collectives();
  EXPECT_EQ(read_store_header(file_).schema_version, 2U);
  publish_example(file_);
  add_collectives();
  EXPECT_EQ(count(file_, "SELECT count(*) FROM session"), 4);
  EXPECT_EQ(count(file_, "SELECT count(*) FROM run"), 2);
  EXPECT_EQ(count(file_, "SELECT count(*) FROM coll_session"), 2);
  EXPECT_EQ(count(file_, "SELECT count(*) FROM coll_sample"), 10);
  EXPECT_EQ(count(file_, "SELECT count(*) FROM pragma_foreign_key_check"), 0);
  EXPECT_EQ(folder_.files(), 1U);
}

TEST_F(StoredCollectives, ALockedTargetKeepsCollectivesInThePartial) {
  const coll::CollOptions options = coll_options();
  const coll::CollResult result = coll_result(options);
  publish_example(file_);
  Database other(file_, Locking::kShared, false);
  other.run("BEGIN EXCLUSIVE");
  fs::path partial;
  {
    ResultStore store(file_, session_, "x");
    partial = store.partial();
    coll::save(coll::Record{session_, options, result, {}}, store);
    const std::string text = io_error([&] { store.finish(std::chrono::milliseconds(50)); });
    EXPECT_NE(text.find(partial.string()), std::string::npos) << text;
  }
  EXPECT_EQ(count(partial, "SELECT count(*) FROM coll_cell"), 1);
  other.run("ROLLBACK");
  EXPECT_EQ(read_store_header(file_).schema_version, 1U) << "nothing was written to it";
}

TEST_F(StoredCollectives, FingerprintsOfCollectives) {
  const coll::CollOptions options = coll_options();
  const coll::CollResult result = coll_result(options);
  const coll::Record record{"one", options, result, {{"cpu.model", {"a", true}}, {"host.name", {"n1", false}}}};
  coll::CollResult later = result;
  later.cells.pop_back();
  later.interrupted.clear();
  coll::Record same{"two", options, later, record.provenance};
  same.provenance["host.name"].value = "n2";
  EXPECT_EQ(coll::fingerprint(record), coll::fingerprint(same)) << "identities and results do not count";
  later.world.oversubscribed = false;
  EXPECT_NE(coll::fingerprint(record), coll::fingerprint(same));
  later.world.oversubscribed = true;
  same.provenance["cpu.model"].value = "b";
  EXPECT_NE(coll::fingerprint(record), coll::fingerprint(same));
}

TEST_F(StoredCollectives, FactsOfALaunchOfCollectives) {
  const coll::CollOptions options = coll_options();
  coll::CollResult result = coll_result(options);
  result.world.hosts = {"n1", "n1", "n2", "n1"};
  const Provenance facts = coll::launch_facts(options, result);
  EXPECT_EQ(facts.at("world.hosts").value, "n1 x 2, n2 x 1, n1 x 1");
  EXPECT_EQ(facts.at("comm.library").value, "a library");
  EXPECT_TRUE(facts.at("comm.library").in_fingerprint);
  EXPECT_FALSE(facts.at("option.seed").in_fingerprint);
  EXPECT_FALSE(facts.contains("gpu.name"));
}

}  // namespace
}  // namespace hvd::bench::store_test
