// Golden test: today's code computes the fingerprints that the stores in results/recorded hold. A series of `hvdb
// history` consists of the sessions with one fingerprint, so a change of the hash, of a fact's name or of a fact's mark
// would split every series that users have.
#include <gtest/gtest.h>
#include <sqlite3.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "bench/coll/record.h"
#include "bench/store/provenance.h"
#include "bench/store/sqlite_handle.h"
#include "engine/base/error.h"
#include "tests/bench/scratch.h"

namespace hvd::bench::recorded_fingerprints_test {
namespace {

namespace fs = std::filesystem;
using Row = std::vector<std::string>;

/// Returns the rows of the query. NULL becomes "".
std::vector<Row> rows(const Database& database, const std::string& sql) {
  std::vector<Row> found;
  const auto add = [](void* out, int columns, char** values, char** /*names*/) {
    Row& row = static_cast<std::vector<Row>*>(out)->emplace_back();
    for (int i = 0; i < columns; ++i) row.emplace_back(values[i] == nullptr ? "" : values[i]);
    return 0;
  };
  if (const int code = sqlite3_exec(database.get(), sql.c_str(), add, &found, nullptr); code != SQLITE_OK) {
    database.fail(code, "reading");
  }
  return found;
}

Phase phase_of(std::string_view text) {
  for (const Phase phase : {Phase::kFull, Phase::kNone, Phase::kSolo}) {
    if (name(phase) == text) return phase;
  }
  throw Error(Errc::kIo, "there is no phase " + std::string(text));
}

/// Asserts the fingerprint of each run of the store, and the mark of each fact from the environment. Adds the number of
/// runs to `checked`.
void check_store(const fs::path& file, std::size_t& checked) {
  const test::Folder folder;
  const fs::path copy = folder / "copy.db";  // Database opens a file for writing
  fs::copy_file(file, copy);
  const Database database(copy, Locking::kShared, false);
  const std::vector<Row> runs =
      rows(database,
           "SELECT uuid, fingerprint, phase, model, device, compute_type, allreduce_type, schedule, comm, data_plane,"
           " plan_hash, batch_size, image_size, auxiliary_head, world_size, nodes, threads, traced, batches_per_iter,"
           " coalesce(parameters, 0) FROM run");
  for (const Row& row : runs) {
    RunRecord run;
    run.phase = phase_of(row[2]);
    run.model = row[3];
    run.device = row[4];
    run.compute_type = row[5];
    run.allreduce_type = row[6];
    run.schedule = row[7];
    run.comm = row[8];
    run.data_plane = row[9];
    run.plan_hash = row[10];
    run.batch_size = std::stoll(row[11]);
    run.image_size = std::stoll(row[12]);
    run.auxiliary_head = row[13] == "1";
    run.world_size = std::stoi(row[14]);
    run.nodes = std::stoi(row[15]);
    run.threads = std::stoi(row[16]);
    run.traced = row[17] == "1";
    run.batches_per_iter = std::stoi(row[18]);
    run.parameters = std::stoll(row[19]);
    const std::string facts = "SELECT key, value, in_fingerprint FROM provenance WHERE run_uuid = '" + row[0] + "'";
    for (const Row& fact : rows(database, facts)) {
      const bool marked = fact[2] == "1";
      run.provenance[fact[0]] = {fact[1], marked};
      if (!fact[0].starts_with("env.")) continue;
      const Provenance today = environment_facts({{fact[0].substr(4), fact[1]}});
      ASSERT_TRUE(today.contains(fact[0])) << fact[0] << " is not stored any more";
      EXPECT_EQ(today.at(fact[0]).in_fingerprint, marked) << fact[0];
    }
    EXPECT_EQ(fingerprint(run), row[1]) << "run " << row[0] << " of " << file;
  }
  checked += runs.size();
}

TEST(RecordedFingerprints, AreThoseOfTodaysCode) {
  std::size_t stores = 0, runs = 0;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(HVD_RECORDED)) {
    if (entry.path().extension() != ".db") continue;
    ++stores;
    check_store(entry.path(), runs);
  }
  EXPECT_GE(stores, 9U);
  EXPECT_GE(runs, 259U);
}

/// Facts about the machine that collect_provenance() marks. A fact may be missing where the machine does not tell it.
/// A new mark splits every series, and so does a mark that is taken away.
TEST(RecordedFingerprints, TheMarksOfTheMachinesFactsAreTheRecordedOnes) {
  const Provenance today = collect_provenance({"hvd_bench"}, {});
  std::size_t compared = 0;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(HVD_RECORDED)) {
    if (entry.path().extension() != ".db") continue;
    const test::Folder folder;
    const fs::path copy = folder / "copy.db";
    fs::copy_file(entry.path(), copy);
    const Database database(copy, Locking::kShared, false);
    // The fingerprint of a training under PyTorch has nothing of hvd_bench, which only computes its figures.
    constexpr const char* kFacts =
        "SELECT DISTINCT key, in_fingerprint FROM provenance JOIN run ON uuid = run_uuid WHERE device <> 'torch'";
    for (const Row& fact : rows(database, kFacts)) {
      if (!today.contains(fact[0]) || fact[0].starts_with("env.")) continue;
      ++compared;
      EXPECT_EQ(today.at(fact[0]).in_fingerprint, fact[1] == "1") << fact[0] << " in " << entry.path();
    }
  }
  EXPECT_GT(compared, 0U);
}

/// No store with collectives is recorded, so the test holds two fingerprints that a separate program computed: FNV-1a
/// over "coll", the device, the launch and the marked facts.
TEST(RecordedFingerprints, OfCollectives) {
  coll::CollOptions options;
  coll::CollResult result;
  result.world.comm = "mpi";
  result.world.ranks = 4;
  result.world.nodes = 2;
  result.world.oversubscribed = true;
  const Provenance facts{
      {"comm.library", {"Open MPI v4.1.4", true}}, {"cpu.model", {"AMD EPYC", true}}, {"host.name", {"n1", false}}};
  EXPECT_EQ(coll::fingerprint({"u", options, result, facts}), "b194b3be69d85b24");
  options.gpus = true;
  options.warm = true;
  options.pace = coll::Pace::kStream;
  EXPECT_EQ(coll::fingerprint({"u", options, result, facts}), "fe00724132bfff0b");
}

}  // namespace
}  // namespace hvd::bench::recorded_fingerprints_test
