// Times saves of a growing session into the store, as rank 0 does them while it measures, and checks the stored rows
// against those of one save of everything.
//   build/release/bin/store_bench [DIRECTORY [RANKS]]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "bench/cli/record_keeper.h"
#include "bench/measure/median.h"
#include "bench/result_store.h"

namespace {

namespace fs = std::filesystem;
using namespace hvd::bench;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kNewSamples = 5, kSaves = 9;

/// Returns this process's bytes handed to write() so far.
std::uint64_t written_bytes(const char* what) {
  std::ifstream io("/proc/self/io");
  std::string key;
  std::uint64_t value = 0;
  while (io >> key >> value) {
    if (key == what) return value;
  }
  return 0;
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

/// Gives every series `samples` samples. A longer series starts with the shorter one.
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

void measure(const fs::path& folder, int ranks, std::size_t samples) {
  const fs::path target = folder / ("store_bench." + std::to_string(samples) + ".db");
  fs::remove(target);
  const std::string session = new_uuid();
  std::vector<RunRecord> runs;
  for (const Phase phase : {Phase::kSolo, Phase::kNone, Phase::kFull}) runs.push_back(describe(session, phase, ranks));
  RecordKeeper keeper(std::make_unique<ResultStore>(target, session, "store_bench"),
                      [](std::string_view line) { std::fprintf(stderr, "%.*s\n", (int)line.size(), line.data()); });
  std::size_t now = samples - kNewSamples * kSaves;
  const auto save_all = [&] {
    for (RunRecord& run : runs) {
      fill(run, now);
      keeper.save(run);
    }
  };
  save_all();
  std::vector<double> seconds, bytes, disk;
  for (std::size_t save = 0; save < kSaves; ++save) {
    now += kNewSamples;
    const std::uint64_t before = written_bytes("wchar:"), before_disk = written_bytes("write_bytes:");
    const auto begin = Clock::now();
    save_all();
    seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
    bytes.push_back(static_cast<double>(written_bytes("wchar:") - before));
    disk.push_back(static_cast<double>(written_bytes("write_bytes:") - before_disk));
  }
  const auto [least, most] = std::minmax_element(seconds.begin(), seconds.end());
  const double size = static_cast<double>(fs::file_size(keeper.partial()));
  std::printf("%6zu %10.1f  %7.1f .. %7.1f %10.1f %10.1f %10.1f\n", samples, 1e3 * median(seconds), 1e3 * *least,
              1e3 * *most, median(bytes) / 1e6, median(disk) / 1e6, size / 1e6);
  std::fflush(stdout);
  keeper.finish();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const fs::path folder = argc > 1 ? argv[1] : ".";
    const int ranks = argc > 2 ? std::atoi(argv[2]) : 512;
    std::printf(" steps    ms/save  least .. most      written MB   disk MB   file MB\n");
    for (const std::size_t samples : {100U, 300U, 1000U}) measure(folder, ranks, samples);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "store_bench: %s\n", error.what());
    return 1;
  }
}
