#include "bench/cli/coll/output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <utility>

#include "bench/cli/coll/report.h"
#include "bench/cli/preflight.h"
#include "bench/coll/record.h"
#include "bench/store/provenance.h"
#include "engine/base/error.h"
#include "engine/base/files.h"

namespace hvd::bench {
namespace {

constexpr std::chrono::seconds kWaitForTheStore(30);  // longest wait for another program's lock on the store

void require_place(const char* option, const std::string& file) {
  if (file.empty()) return;
  const std::filesystem::path path = file;
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  if (!std::filesystem::is_directory(folder) || ::access(folder.c_str(), W_OK) != 0) {
    throw Error(Errc::kIo,
                fmt::format("{} {}: no file can be made in {}; give another name", option, file, folder.string()));
  }
  require_replaceable(file);
}

}  // namespace

void check_coll_outputs(const coll::CollOptions& options) {
  require_place("-J", options.json_file);
  require_place("--csv", options.csv_file);
  if (options.db_file.empty()) return;
  std::vector<OutputFile> files{{"--db", options.db_file}};
  if (!options.json_file.empty()) files.push_back({"-J", options.json_file});
  if (!options.csv_file.empty()) files.push_back({"--csv", options.csv_file});
  require_files_of_their_own(files);
}

CollStore::CollStore(const std::string& file, const std::vector<std::string>& argv, const ProcessStart& start)
    : store_(file, session_uuid_, quoted_command_line(argv, start)), provenance_(collect_provenance(argv, start)) {}

void CollStore::put(const coll::CollOptions& options, const coll::CollResult& result,
                    std::chrono::milliseconds patience) {
  coll::Record record{session_uuid_, options, result, provenance_};
  record.provenance.merge(coll::launch_facts(options, result));
  coll::save(record, store_);
  store_.finish(patience);
}

void put_coll_outputs(const CollOutput& output, const coll::CollResult& result, std::chrono::milliseconds patience) {
  const coll::CollOptions& options = output.options;
  std::optional<Error> first;
  const auto attempt = [&](auto&& write) {
    try {
      write();
    } catch (const Error& error) {
      if (!first) first = error;
    }
  };
  if (!options.json_file.empty()) {
    const Provenance environment = environment_facts(output.environment);
    attempt([&] { replace_file(options.json_file, coll::json(options, result, output.argv, environment)); });
  }
  if (!options.csv_file.empty()) attempt([&] { replace_file(options.csv_file, coll::csv(result)); });
  attempt([&] { output.console.print(coll::table(options, result)); });
  if (output.store != nullptr) {  // stored last, because a disk may take longer than a launcher waits
    attempt([&] {
      output.store->put(options, result, patience);
      output.console.narrate(fmt::format("coll: stored in {}\n", output.store->file()));
    });
  }
  if (first) throw Error(*first);
}

void CollKeeper::observe(coll::CollObserver& observer) {
  observer.finished = [this](const coll::CollResult& result) {
    const std::lock_guard lock(mutex_);
    if (written_) return;
    put_coll_outputs(*output_, result, kWaitForTheStore);
    written_ = true;
  };
  observer.snapshot = [this](coll::Snapshot snapshot) {
    const std::lock_guard lock(mutex_);
    snapshot_ = std::move(snapshot);
  };
}

void CollKeeper::write_now(const std::string& reason, std::chrono::milliseconds patience) {
  const std::unique_lock lock(mutex_, patience);
  if (!lock || written_ || !snapshot_) return;
  const std::optional<coll::CollResult> result = snapshot_(reason);
  if (!result) return;
  try {
    put_coll_outputs(*output_, *result, patience);
    written_ = true;
  } catch (const Error& error) {
    say_error(error.what());
  }
}

}  // namespace hvd::bench
