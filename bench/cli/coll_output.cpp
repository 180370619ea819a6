#include "bench/cli/coll_output.h"

#include <unistd.h>

#include <filesystem>
#include <optional>

#include "bench/coll/report.h"
#include "bench/provenance.h"
#include "engine/base/error.h"
#include "engine/base/files.h"

namespace hvd::bench {
namespace {

void require_place(const char* option, const std::string& file) {
  if (file.empty()) return;
  const std::filesystem::path path = file;
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  if (!std::filesystem::is_directory(folder) || ::access(folder.c_str(), W_OK) != 0) {
    throw Error(Errc::kIo, std::string(option) + " " + file + ": no file can be made in " + folder.string() +
                               "; give another name");
  }
  require_replaceable(file);
}

}  // namespace

void check_coll_outputs(const coll::CollOptions& options) {
  require_place("-J", options.json_file);
  require_place("--csv", options.csv_file);
}

void put_coll_outputs(const CollOutput& output, const coll::CollResult& result) {
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
  if (first) throw Error(*first);
}

coll::CollObserver coll_observer(const SessionObserver& session, const CollOutput& output) {
  coll::CollObserver observer;
  observer.stop_requested = session.stop_requested;
  observer.joined = session.joined;
  observer.leaving = session.leaving;
  observer.met = session.met;
  observer.narrate = [output](const std::string& line) { output.console.narrate(line); };
  observer.finished = [output](const coll::CollResult& result) { put_coll_outputs(output, result); };
  return observer;
}

}  // namespace hvd::bench
