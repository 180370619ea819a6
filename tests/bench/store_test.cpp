// Tests the store. Saved runs can be read back, and published runs are merged. Every fault must leave the target
// unchanged and the session's rows in the partial file.
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>

#include "bench/coll/cells.h"
#include "bench/coll/record.h"
#include "bench/store/result_store.h"
#include "bench/store/sqlite_handle.h"
#include "engine/base/error.h"
#include "tests/bench/store_parts.h"

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
    coll::CellResult each;
    each.cell = cell;
    each.bytes = 1024;
    result.cells.push_back(std::move(each));
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

std::string message_of(const std::function<void()>& act, Errc expected = Errc::kIo) {
  try {
    act();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), expected) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

TEST(Store, SavesWhatItWasGivenAndPublishesByRename) {
  const Folder folder;
  const std::string session = new_uuid();
  const RunRecord run = example(session);
  {
    ResultStore store(folder / "a.db", session, "hvd_bench --model vgg16");
    store.save(run);
    EXPECT_FALSE(fs::exists(folder / "a.db"));
    EXPECT_EQ(store.partial(), folder / ("a.db." + session + ".partial").c_str());
    store.finish();
  }
  EXPECT_EQ(folder.files(), 1U);
  Database database(folder / "a.db", Locking::kShared, false);
  EXPECT_EQ(database.text("SELECT command_line FROM session"), "hvd_bench --model vgg16");
  EXPECT_EQ(database.text("SELECT model || batch_size || phase || status || origin FROM run"),
            "vgg164fullrunningmeasured");
  EXPECT_EQ(database.text("SELECT images_per_second FROM run"), "120.5");
  EXPECT_EQ(database.text("SELECT finished_utc IS NULL AND step_seconds IS NULL FROM run"), "1");
  EXPECT_EQ(database.text("SELECT value FROM provenance WHERE key = 'cpu.model'"), "it's \"quoted\"");
  EXPECT_EQ(database.integer("SELECT count(*) FROM sample"), 6);
  EXPECT_EQ(database.text("SELECT hex(data) FROM sample WHERE rank = 1 AND kind = 'step_seconds'"),
            "000000000000E03F000000000000D03F000000000000C03F");
  EXPECT_EQ(database.text("SELECT group_concat(rank || kind || hex(data)) FROM"
                          " (SELECT * FROM sample WHERE kind GLOB '*_replicates' ORDER BY kind)"),
            "0efficiency_replicates000000000000EC3F,0step_seconds_replicates000000000000D03F000000000000E03F");
  EXPECT_EQ(database.text("SELECT group_concat(component) FROM decomposition WHERE low IS NULL"), "residual");
  EXPECT_EQ(database.integer("SELECT library FROM operation"), 1);
  EXPECT_EQ(database.text("PRAGMA integrity_check"), "ok");
  EXPECT_EQ(database.text("PRAGMA journal_mode"), "delete");
}

TEST(Store, SavingAgainReplacesTheRun) {
  const Folder folder;
  const std::string session = new_uuid();
  RunRecord run = example(session);
  ResultStore store(folder / "a.db", session, "x");
  store.save(run);
  run.status = RunStatus::kComplete;
  run.ranks[0].samples.step.push_back(0.0625);
  run.operations.clear();
  store.save(run);
  store.finish();
  EXPECT_EQ(count(folder / "a.db", "SELECT count(*) FROM run WHERE status = 'complete'"), 1);
  EXPECT_EQ(count(folder / "a.db", "SELECT count FROM sample WHERE rank = 0 AND kind = 'step_seconds'"), 4);
  EXPECT_EQ(count(folder / "a.db", "SELECT count(*) FROM operation"), 0);
}

TEST(Store, TwoSessionsOfOneFileAreMerged) {
  const Folder folder;
  const std::string first = new_uuid(), second = new_uuid();
  ResultStore a(folder / "a.db", first, "first");
  ResultStore b(folder / "a.db", second, "second");  // both sessions open the store before the target exists
  a.save(example(first));
  b.save(example(second));
  a.finish();
  b.finish();
  EXPECT_EQ(folder.files(), 1U);
  EXPECT_EQ(count(folder / "a.db", "SELECT count(*) FROM session"), 2);
  EXPECT_EQ(count(folder / "a.db", "SELECT count(*) FROM run"), 2);
  EXPECT_EQ(count(folder / "a.db", "SELECT count(*) FROM sample"), 12);
}

TEST(Store, AStoreFromBeforeTheShardedScheduleIsToldAtTheFirstSave) {
  const Folder folder;
  const std::string session = new_uuid();
  RunRecord run = example(session);
  run.schedule = "sharded";
  for (const char* const name : {"new.db", "old.db"}) {
    const std::string its = new_uuid();
    ResultStore first(folder / name, its, "hvd_bench");
    first.save(example(its));
    first.finish();
  }
  {
    Database old(folder / "old.db", Locking::kShared, false);
    old.run(
        "PRAGMA writable_schema = ON;"
        "UPDATE sqlite_schema SET sql = replace(sql, '''sharded'', ', '') WHERE name = 'run';");
  }
  ResultStore fits(folder / "new.db", session, "hvd_bench --schedule sharded");
  fits.save(run);
  fits.finish();
  EXPECT_EQ(count(folder / "new.db", "SELECT count(*) FROM run WHERE schedule = 'sharded'"), 1);
  ResultStore refuses(folder / "old.db", session, "hvd_bench --schedule sharded");
  EXPECT_NE(message_of([&] { refuses.save(run); }).find("use another --db"), std::string::npos);
}

TEST(Store, CollectivesAreSavedWithTheirSamples) {
  const Folder folder;
  const std::string session = new_uuid();
  const coll::CollOptions options = coll_options();
  const coll::CollResult result = coll_result(options);
  ASSERT_EQ(result.cells.size(), 2U);
  {
    ResultStore store(folder / "a.db", session, "hvd_bench coll");
    const coll::Record record{session, options, result, {{"cpu.model", {"it's \"quoted\"", true}}}};
    coll::save(record, store);
    coll::save(record, store);  // replaces the rows of the first save
    store.finish();
  }
  EXPECT_EQ(folder.files(), 1U);
  EXPECT_EQ(read_store_header(folder / "a.db").schema_version, 2U);
  Database database(folder / "a.db", Locking::kShared, false);
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
  EXPECT_EQ(database.text("PRAGMA integrity_check"), "ok");
}

TEST(Store, ATimeThatTheClockCannotTellIsUnknown) {
  const Folder folder;
  const std::string session = new_uuid();
  const coll::CollOptions options = coll_options();
  coll::CollResult result = coll_result(options);
  result.cells[0].seconds = {0, 0, 0};
  result.cells[0].bound = HUGE_VAL;  // the quotient of a time and a time of 0
  ResultStore store(folder / "a.db", session, "x");
  coll::save(coll::Record{session, options, result, {}}, store);
  store.finish();
  EXPECT_EQ(count(folder / "a.db", "SELECT count(*) FROM coll_cell WHERE seconds IS NULL AND bound IS NULL"), 1);
}

TEST(Store, CollectivesAndRunsShareAStore) {
  const Folder folder;
  const coll::CollOptions options = coll_options();
  const coll::CollResult result = coll_result(options);
  const auto add_run = [&](const char* name) {
    const std::string session = new_uuid();
    ResultStore store(folder / name, session, "x");
    store.save(example(session));
    store.finish();
  };
  const auto add_collectives = [&](const char* name) {
    const std::string session = new_uuid();
    ResultStore store(folder / name, session, "x");
    coll::save(coll::Record{session, options, result, {}}, store);
    store.finish();
  };
  add_run("a.db");
  EXPECT_EQ(read_store_header(folder / "a.db").schema_version, 1U) << "older programs read stores of runs";
  add_collectives("a.db");
  EXPECT_EQ(read_store_header(folder / "a.db").schema_version, 2U);
  add_run("a.db");
  add_collectives("a.db");
  EXPECT_EQ(count(folder / "a.db", "SELECT count(*) FROM session"), 4);
  EXPECT_EQ(count(folder / "a.db", "SELECT count(*) FROM run"), 2);
  EXPECT_EQ(count(folder / "a.db", "SELECT count(*) FROM coll_session"), 2);
  EXPECT_EQ(count(folder / "a.db", "SELECT count(*) FROM coll_sample"), 10);
  EXPECT_EQ(count(folder / "a.db", "SELECT count(*) FROM pragma_foreign_key_check"), 0);
  EXPECT_EQ(folder.files(), 1U);
}

TEST(Store, ALockedTargetKeepsCollectivesInThePartial) {
  const Folder folder;
  const coll::CollOptions options = coll_options();
  const coll::CollResult result = coll_result(options);
  const std::string first = new_uuid(), second = new_uuid();
  {
    ResultStore store(folder / "a.db", first, "x");
    store.save(example(first));
    store.finish();
  }
  Database other(folder / "a.db", Locking::kShared, false);
  other.run("BEGIN EXCLUSIVE");
  fs::path partial;
  {
    ResultStore store(folder / "a.db", second, "x");
    partial = store.partial();
    coll::save(coll::Record{second, options, result, {}}, store);
    const std::string text = message_of([&] { store.finish(std::chrono::milliseconds(50)); });
    EXPECT_NE(text.find(partial.string()), std::string::npos) << text;
  }
  EXPECT_EQ(count(partial, "SELECT count(*) FROM coll_cell"), 1);
  other.run("ROLLBACK");
  EXPECT_EQ(read_store_header(folder / "a.db").schema_version, 1U) << "nothing was written to it";
}

TEST(Store, FingerprintsOfCollectives) {
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

TEST(Store, FactsOfALaunchOfCollectives) {
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

TEST(Store, AnEmptyFileBecomesAStore) {  // `mktemp` leaves an empty file
  const Folder folder;
  std::ofstream(folder / "a.db").close();
  const std::string session = new_uuid();
  ResultStore store(folder / "a.db", session, "x");
  store.save(example(session));
  store.finish();
  EXPECT_EQ(read_store_header(folder / "a.db").kind, StoreHeader::Kind::kOurs);
  EXPECT_EQ(count(folder / "a.db", "SELECT count(*) FROM run"), 1);
}

TEST(Store, ANameThatLooksLikeAnUri) {
  const Folder folder;
  const std::string session = new_uuid();
  ResultStore store(folder / "file:a?mode=ro#1%20.db", session, "x");
  store.save(example(session));
  store.finish();
  EXPECT_TRUE(fs::exists(folder / "file:a?mode=ro#1%20.db"));
}

TEST(Store, NothingSavedLeavesNothingBehind) {
  const Folder folder;
  {
    ResultStore store(folder / "a.db", new_uuid(), "x");
    EXPECT_EQ(folder.files(), 0U) << "a job may be killed here";
    store.mark_incomplete("SIGTERM");
    store.finish();
  }
  EXPECT_EQ(folder.files(), 0U);
}

TEST(Store, AnUnfinishedSessionLeavesItsPartial) {
  const Folder folder;
  const std::string session = new_uuid();
  fs::path partial;
  {
    ResultStore store(folder / "a.db", session, "x");
    partial = store.partial();
    store.save(example(session));
  }
  EXPECT_EQ(count(partial, "SELECT count(*) FROM run WHERE status = 'running'"), 1);
}

TEST(Store, MarksWhatStillRunsIncomplete) {
  const Folder folder;
  const std::string session = new_uuid();
  ResultStore store(folder / "a.db", session, "x");
  RunRecord done = example(session);
  done.status = RunStatus::kComplete;
  store.save(done);
  store.save(example(session));
  store.mark_incomplete("SIGTERM");
  store.finish();
  Database database(folder / "a.db", Locking::kShared, false);
  EXPECT_EQ(database.text("SELECT group_concat(status || status_reason) FROM (SELECT * FROM run ORDER BY status)"),
            "complete,incompleteSIGTERM");
  EXPECT_EQ(database.integer("SELECT count(*) FROM run WHERE status = 'incomplete' AND finished_utc IS NOT NULL"), 1);
}

TEST(Store, RefusesWhatIsNotAStore) {
  const Folder folder;
  const auto open = [&](const char* name) { return message_of([&] { ResultStore(folder / name, new_uuid(), "x"); }); };
  std::ofstream(folder / "notes.txt") << "nothing like a database";
  EXPECT_NE(open("notes.txt").find("notes.txt: is not a SQLite database"), std::string::npos);
  {
    Database foreign(folder / "foreign.db", Locking::kShared, true);
    foreign.run("PRAGMA application_id = 77; CREATE TABLE t (x);");
  }
  EXPECT_NE(open("foreign.db").find("another program's database"), std::string::npos);
  for (const int version : {0, 99}) {
    fs::remove(folder / "other.db");
    Database other(folder / "other.db", Locking::kShared, true);
    other.run("PRAGMA application_id = 1752589410; PRAGMA user_version = " + std::to_string(version) +
              "; CREATE TABLE t (x);");
    const std::string text = open("other.db");
    EXPECT_NE(text.find("schema version " + std::to_string(version)), std::string::npos) << text;
    EXPECT_NE(text.find("this program writes versions 1 and 2"), std::string::npos) << text;
  }
  EXPECT_NE(open(".").find("is a directory"), std::string::npos);
  EXPECT_NE(open("no/such/place.db").find("there is no directory"), std::string::npos);
  EXPECT_EQ(folder.files(), 3U) << "no partial may stay behind";
}

TEST(Store, RefusesAStoreThatIsCutOff) {
  const Folder folder;
  const fs::path file = folder / "a.db";
  const std::string session = new_uuid();
  ResultStore store(file, session, "x");
  store.save(example(session));
  store.finish();
  EXPECT_NO_THROW(ResultStore(file, new_uuid(), "x"));
  const std::uintmax_t whole = fs::file_size(file);
  fs::resize_file(file, whole - 1);
  const std::string text = message_of([&] { ResultStore(file, new_uuid(), "x"); });
  EXPECT_NE(
      text.find("a.db: is cut off after " + std::to_string(whole - 1) + " of " + std::to_string(whole) + " bytes"),
      std::string::npos)
      << text;
  EXPECT_EQ(fs::file_size(file), whole - 1);
}

TEST(Store, RefusesADirectoryThatCannotBeWritten) {
  if (::geteuid() == 0) {
    // Root may write to every folder but /proc, where the kernel refuses new files.
    const std::string text = message_of([] { ResultStore("/proc/a.db", new_uuid(), "x"); });
    EXPECT_NE(text.find("/proc"), std::string::npos);
    return;
  }
  const Folder folder;
  ::chmod(folder.path().c_str(), 0500);
  const std::string text = message_of([&] { ResultStore(folder / "a.db", new_uuid(), "x"); });
  ::chmod(folder.path().c_str(), 0700);
  EXPECT_NE(text.find("cannot be written"), std::string::npos);
}

TEST(Store, ALockedTargetKeepsThePartialAndSaysSo) {
  const Folder folder;
  const std::string first = new_uuid(), second = new_uuid();
  {
    ResultStore store(folder / "a.db", first, "x");
    store.save(example(first));
    store.finish();
  }
  ResultStore store(folder / "a.db", second, "x");
  store.save(example(second));
  {
    Database other(folder / "a.db", Locking::kShared, false);
    other.run("BEGIN EXCLUSIVE");
    const std::string text = message_of([&] { store.finish(std::chrono::milliseconds(50)); });
    EXPECT_NE(text.find("lock"), std::string::npos) << text;
    EXPECT_NE(text.find(store.partial().string()), std::string::npos) << text;
    other.run("ROLLBACK");
  }
  EXPECT_EQ(count(store.partial(), "SELECT count(*) FROM run"), 1);
  store.finish();  // the other connection has released its lock
  EXPECT_EQ(count(folder / "a.db", "SELECT count(*) FROM run"), 2);
  EXPECT_FALSE(fs::exists(store.partial()));
}

TEST(Store, ATargetReplacedByAnotherProgramsFileIsLeftAlone) {
  const Folder folder;
  const std::string session = new_uuid();
  ResultStore store(folder / "a.db", session, "x");
  store.save(example(session));
  std::ofstream(folder / "a.db") << "somebody else's";
  const std::string text = message_of([&] { store.finish(); });
  EXPECT_NE(text.find("is not a SQLite database"), std::string::npos);
  EXPECT_TRUE(fs::exists(store.partial()));
  EXPECT_EQ(fs::file_size(folder / "a.db"), 15U);
}

/// Lowers RLIMIT_FSIZE while the object exists. Writes beyond the limit fail with EFBIG, because the test ignores
/// SIGXFSZ, as the program does.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : before_handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit lower{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &lower);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, before_handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
  void (*before_handler_)(int);
};

TEST(Store, ASaveThatDoesNotFitLosesNothingAndCanBeRepeated) {
  const Folder folder;
  const std::string session = new_uuid();
  RunRecord run = example(session);
  ResultStore store(folder / "a.db", session, "x");
  store.save(run);
  run.ranks[0].samples.step.assign(200000, 0.5);
  {
    const FileSizeLimit limit(rlim_t{256} << 10);
    const std::string text = message_of([&] { store.save(run); });
    EXPECT_NE(text.find(".partial: writing failed"), std::string::npos) << text;
    EXPECT_NE(text.find("ulimit -f"), std::string::npos) << text;
    EXPECT_EQ(count(store.partial(), "SELECT count FROM sample WHERE rank = 0 AND kind = 'step_seconds'"), 3);
  }
  store.save(run);
  store.finish();
  EXPECT_EQ(difference(folder / "a.db", {run}), "");
}

TEST(Store, AFullDiskIsSaidPlainly) {
  const Folder folder;
  if (::mount("none", folder.path().c_str(), "tmpfs", 0, "size=256k") != 0) GTEST_SKIP() << "needs the right to mount";
  std::string text;
  {
    const std::string session = new_uuid();
    RunRecord run = example(session);
    ResultStore store(folder / "a.db", session, "x");
    store.save(run);
    run.ranks[0].samples.step.assign(200000, 0.5);
    text = message_of([&] { store.save(run); });
    EXPECT_EQ(count(store.partial(), "SELECT count(*) FROM run"), 1);
  }
  ::umount(folder.path().c_str());
  EXPECT_NE(text.find("the disk is full; free space"), std::string::npos) << text;
}

TEST(Store, IdentitiesAndTimes) {
  const std::string uuid = new_uuid();
  ASSERT_EQ(uuid.size(), 36U);
  EXPECT_EQ(uuid[14], '4');
  EXPECT_NE(std::string("89ab").find(uuid[19]), std::string::npos);
  EXPECT_NE(new_uuid(), new_uuid());
  const std::string now = utc_now();
  ASSERT_EQ(now.size(), 24U);
  EXPECT_EQ(now[10], 'T');
  EXPECT_EQ(now.substr(19, 1), ".");
  EXPECT_EQ(now.back(), 'Z');
}

}  // namespace
}  // namespace hvd::bench::store_test
