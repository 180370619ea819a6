// Times the saves that rank 0 makes while a session measures: between two saves, each of three phases gets five more
// samples. Checks that the stored rows equal those of a single save.
//   store_bench DIRECTORY [RANKS]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "bench/cli/record_keeper.h"
#include "bench/measure/median.h"
#include "bench/store/result_store.h"
#include "bench/store/sqlite_handle.h"
#include "engine/base/error.h"

namespace {

namespace fs = std::filesystem;
using namespace hvd::bench;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kNewSamples = 5, kSaves = 9;

/// Returns how many bytes this process has written (wchar in /proc/self/io).
double written_bytes() {
  std::ifstream file("/proc/self/io");
  std::string key;
  double value = 0;
  while (file >> key >> value && key != "wchar:") {
  }
  return value;
}

RunRecord describe(const std::string& session, Phase phase, int ranks) {
  RunRecord run;
  run.uuid = new_uuid();
  run.session_uuid = session;
  run.phase = phase;
  run.started_utc = utc_now();
  run.model = "resnet101";
  run.batch_size = 64;
  run.image_size = 224;
  run.device = "cpu";
  run.compute_type = run.allreduce_type = "fp32";
  run.schedule = "static";
  run.comm = "mpi";
  run.data_plane = "ring";
  run.allocation_size = ranks;
  run.world_size = phase == Phase::kSolo ? 1 : ranks;
  for (int fact = 0; fact < 80; ++fact) {
    run.provenance["fact." + std::to_string(fact)] = {std::string(40, 'x'), true};
  }
  run.ranks.resize(static_cast<std::size_t>(run.world_size));
  for (int r = 0; r < run.world_size; ++r) {
    RankRecord& rank = run.ranks[static_cast<std::size_t>(r)];
    rank.rank = r;
    rank.host = "node" + std::to_string(r / 8);
    rank.local_rank = r % 8;
  }
  return run;
}

/// Extends every series to `samples` samples. Stored samples stay as they are.
void fill(RunRecord& run, std::size_t samples) {
  for (RankRecord& rank : run.ranks) {
    double step = 0.5 + 0.001 * rank.rank;
    for (const StepSeries& series : kStepSeries) {
      std::vector<double>& values = rank.samples.*series.of_rank;
      for (std::size_t i = values.size(); i < samples; ++i) values.push_back(step + 1e-6 * static_cast<double>(i));
      step *= 0.5;
    }
  }
  run.measured_steps = static_cast<std::int64_t>(samples);
  run.step_seconds = Estimate{0.5, 0.4, 0.6};
  run.step_replicates.assign(200, 0.5 + 1e-6 * static_cast<double>(samples));
}

/// Errors: check_failed if the samples in `file` differ from those that a single save of each run stores.
void require_rows(const fs::path& file, const std::vector<RunRecord>& runs) {
  ResultStore expected(file.string() + ".expected", runs[0].session_uuid, "store_bench");
  for (const RunRecord& run : runs) expected.save(run);
  Database database(file, Locking::kShared, false);
  Statement(database, "ATTACH ? AS expected").bind(expected.partial().string()).run();
  const std::int64_t rows = database.integer("SELECT count(*) FROM expected.sample");
  const std::int64_t equal = database.integer(
      "SELECT count(*) FROM sample AS a JOIN expected.sample AS b USING (run_uuid, rank, kind) WHERE a.data = b.data");
  if (database.integer("SELECT count(*) FROM sample") == rows && equal == rows) {
    expected.finish();
    fs::remove(expected.target());
    return;
  }
  throw hvd::Error(hvd::Errc::kCheckFailed, file.string() + ": differs from " + expected.partial().string());
}

void measure(const fs::path& folder, int ranks, std::size_t samples) {
  const std::string session = new_uuid();
  const fs::path target = folder / ("store_bench." + session + ".db");
  std::vector<RunRecord> runs;
  for (const Phase phase : {Phase::kSolo, Phase::kNone, Phase::kFull}) runs.push_back(describe(session, phase, ranks));
  RecordKeeper keeper(std::make_unique<ResultStore>(target, session, "store_bench"),
                      [](std::string_view line) { throw hvd::Error(hvd::Errc::kIo, std::string(line)); });
  std::vector<double> seconds, bytes;
  for (std::size_t save = 0; save <= kSaves; ++save) {
    for (RunRecord& run : runs) fill(run, samples - kNewSamples * (kSaves - save));
    const double before = written_bytes();
    const auto begin = Clock::now();
    for (const RunRecord& run : runs) keeper.save(run);
    if (save == 0) continue;  // not timed: the first save stores everything
    seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
    bytes.push_back(written_bytes() - before);
  }
  const auto [least, most] = std::minmax_element(seconds.begin(), seconds.end());
  std::printf("%7zu %10.0f %6.0f .. %4.0f %12.1f %8.1f\n", samples, 1e3 * median(seconds), 1e3 * *least, 1e3 * *most,
              median(bytes) / 1e6, static_cast<double>(fs::file_size(keeper.partial())) / 1e6);
  std::fflush(stdout);
  keeper.finish();
  require_rows(target, runs);
  fs::remove(target);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::fputs("usage: store_bench DIRECTORY [RANKS]\n", stderr);
    return 2;
  }
  try {
    const int ranks = argc > 2 ? std::stoi(argv[2]) : 512;
    std::puts("samples    ms/save  least .. most   written MB  file MB");
    for (const std::size_t samples : {100U, 300U, 1000U}) measure(argv[1], ranks, samples);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "store_bench: %s\n", error.what());
    return 1;
  }
}
