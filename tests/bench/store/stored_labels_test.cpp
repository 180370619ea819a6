// Tests stored_labels(), which tells a job script the labels of all sessions that ended well. Sessions also count
// if they are in the partial file of a killed job.
#include "bench/store/stored_labels.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "bench/cli/command_line.h"
#include "bench/cli/report.h"
#include "bench/store/result_store.h"
#include "bench/store/sqlite_handle.h"
#include "tests/bench/scratch.h"

namespace hvd::bench::stored_labels_test {
namespace {

namespace fs = std::filesystem;
using Values = std::set<std::string>;

class StoredLabelsTest : public testing::Test {
 protected:
  [[nodiscard]] fs::path file(const std::string& name) const { return folder_ / name; }

  /// Adds a session with one run for each of `states`. Each run has the label cell=`cell`.
  void add(ResultStore& store, const std::string& session, const std::string& cell,
           const std::vector<RunStatus>& states) const {
    for (const RunStatus status : states) {
      RunRecord run;
      run.uuid = new_uuid();
      run.session_uuid = session;
      run.status = status;
      run.started_utc = utc_now();
      run.model = "vgg16";
      run.batch_size = run.image_size = 1;
      run.device = "cpu";
      run.compute_type = run.allreduce_type = "fp32";
      run.schedule = run.data_plane = "none";
      run.schedule = "static";
      run.comm = "solo";
      if (!cell.empty()) run.provenance["label.cell"] = {cell, false};
      store.save(run);
    }
  }
  void publish(const fs::path& target, const std::string& cell, const std::vector<RunStatus>& states) const {
    const std::string session = new_uuid();
    ResultStore store(target, session, "hvd_bench");
    add(store, session, cell, states);
    store.finish();
  }
  [[nodiscard]] static Values values(const std::vector<fs::path>& files, std::size_t problems = 0) {
    std::vector<std::string> names(files.begin(), files.end());
    const StoredLabels labels = stored_labels("cell", names);
    EXPECT_EQ(labels.problems.size(), problems) << (labels.problems.empty() ? "" : labels.problems.front());
    return labels.values;
  }

  const test::Folder folder_;
};

TEST_F(StoredLabelsTest, WhatCannotBeReadIsSaidAndTheRestIsListed) {
  publish(file("good.db"), "good", {RunStatus::kComplete});
  std::ofstream(file("text.db")) << "my thesis, which is longer than one hundred characters so that only its contents "
                                    "give it away as something else";
  std::ofstream(file("empty.db")).flush();
  fs::copy_file(file("good.db"), file("cut.db"));
  fs::resize_file(file("cut.db"), fs::file_size(file("good.db")) - 1);
  fs::copy_file(file("good.db"), file("newer.db"));
  Database(file("newer.db"), Locking::kShared, false).run("PRAGMA user_version = 99");
  fs::copy_file(file("good.db"), file("foreign.db"));
  Database(file("foreign.db"), Locking::kShared, false).run("PRAGMA application_id = 7");
  EXPECT_EQ(values({file("text.db"), file("empty.db"), file("good.db"), file("none.db"), file("cut.db"),
                    file("newer.db"), file("foreign.db")},
                   6),
            Values{"good"});
  std::ostringstream out;
  testing::internal::CaptureStderr();
  EXPECT_EQ(print_stored_labels(stored_labels("cell", {file("newer.db"), file("good.db")}), out), 2);
  EXPECT_EQ(out.str(), "good\n");
  EXPECT_NE(testing::internal::GetCapturedStderr().find("newer.db: has schema version 99"), std::string::npos);
}

CommandLine parse(const std::vector<std::string>& words) {
  std::vector<std::string> argv{"hvd_bench"};
  argv.insert(argv.end(), words.begin(), words.end());
  return parse_command_line(argv, {});
}

std::string error_of(const std::vector<std::string>& words) {
  return test::error_of(Errc::kInvalidArgument, [&] { parse(words); });
}

TEST(LabelOptions, EveryLabelIsKept) {
  const Options options =
      parse({"--label", "cell=ab12", "--model", "vgg16", "--label=why=a = b", "--label", "cell=cd34"}).options;
  EXPECT_EQ(options.model, "vgg16") << "an option that takes several values must not swallow the next one";
  EXPECT_EQ(options.labels, (std::map<std::string, std::string>{{"cell", "cd34"}, {"why", "a = b"}}));
}

TEST(LabelOptions, BadOnesSayWhatIsRight) {
  for (const char* bad : {"cell", "=x", "Cell=x", "a b=c", ""}) {
    EXPECT_NE(error_of({"--label", bad}).find("KEY=VALUE"), std::string::npos) << bad;
  }
}

TEST(StoredCommand, TakesAKeyAndFilesAndNothingElse) {
  const CommandLine line = parse({"stored", "cell", "a.db", "b.db"});
  EXPECT_EQ(line.command, Command::kStored);
  EXPECT_EQ(line.label, "cell");
  EXPECT_EQ(line.files, (std::vector<std::string>{"a.db", "b.db"}));
  EXPECT_NE(error_of({"stored", "cell"}).find("STORE"), std::string::npos);
  EXPECT_NE(error_of({"stored"}).find("KEY"), std::string::npos);
  EXPECT_NE(error_of({"stored", "cell", "a.db", "--model", "vgg16"}).find("hvd_bench stored"), std::string::npos);
}

}  // namespace
}  // namespace hvd::bench::stored_labels_test
