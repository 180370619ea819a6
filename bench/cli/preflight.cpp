#include "bench/cli/preflight.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "bench/world/values.h"
#include "engine/base/error.h"
#include "engine/runtime/trace.h"
#include "models/zoo/zoo.h"

namespace hvd::bench {
namespace {

namespace fs = std::filesystem;

void check_model_name(const std::string& model) {
  std::vector<std::string> known;
  std::string list;
  for (const models::ModelInfo& info : models::model_catalogue()) {
    known.push_back(info.name);
    if (!list.empty()) list += ", ";
    list += info.name;
    for (const std::string& alias : info.aliases) known.push_back(alias);
  }
  for (const std::string& name : known) {
    if (name == model) return;
  }
  throw Error(Errc::kInvalidArgument,
              fmt::format("--model: '{}' is not one of {}{}", model, list, did_you_mean(model, known)));
}

/// Returns the file that `path` names, with all links followed. The file need not exist.
fs::path resolved(const std::string& path) {
  constexpr int kMaxLinks = 40;  // Linux has the same limit
  std::error_code problem;
  fs::path target = fs::absolute(path, problem);
  for (int link = 0; link < kMaxLinks && fs::is_symlink(target, problem); ++link) {
    target = target.parent_path() / fs::read_symlink(target, problem);
  }
  return fs::weakly_canonical(target, problem);
}

bool same_file(const std::string& file, const std::string& other) {
  std::error_code ignored;
  return fs::equivalent(file, other, ignored) || resolved(file) == resolved(other);
}

bool is_where_text_goes(const std::string& path) {
  struct stat file {};
  if (::stat(path.c_str(), &file) != 0 || !S_ISREG(file.st_mode)) return false;
  for (const int descriptor : {STDOUT_FILENO, STDERR_FILENO}) {
    struct stat open {};
    if (::fstat(descriptor, &open) == 0 && open.st_dev == file.st_dev && open.st_ino == file.st_ino) return true;
  }
  return false;
}

void check_replay_target(const std::string& path) {
  struct stat before {};
  const bool there = ::stat(path.c_str(), &before) == 0;
  if (there && S_ISREG(before.st_mode) && before.st_size > 0) {
    constexpr std::string_view kBegin = "hvd-replay";
    std::array<char, kBegin.size()> begin{};
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    const ssize_t got = descriptor < 0 ? -1 : ::read(descriptor, begin.data(), begin.size());
    if (descriptor >= 0) ::close(descriptor);
    if (got >= 0 && std::string_view(begin.data(), static_cast<std::size_t>(got)) != kBegin) {
      throw Error(Errc::kIo, path + ": is not a replay file; it was left untouched, give --record-replay another name");
    }
  }
  // With O_NONBLOCK, opening a pipe without a reader fails instead of waiting for a reader.
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_NONBLOCK | O_CLOEXEC, 0666);
  if (descriptor < 0) {
    throw Error(Errc::kIo, fmt::format("{}: cannot be written ({}); give --record-replay a file that can", path,
                                       std::strerror(errno)));
  }
  ::close(descriptor);
  if (!there) ::unlink(path.c_str());
}

}  // namespace

Setup check_model(const Options& options, GpuBackend* gpus) {
  if (options.replay_file.empty()) check_model_name(options.model);
  Setup setup = settle(options, gpus);
  if (!setup.replay) models::build_model(setup.model);  // called only for its errors; takes milliseconds
  return setup;
}

void require_files_of_their_own(const std::vector<OutputFile>& outputs) {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const OutputFile& output = outputs[i];
    if (is_where_text_goes(output.path)) {
      throw Error(Errc::kInvalidArgument,
                  fmt::format("{} {}: standard output or standard error goes there; name another file", output.option,
                              output.path));
    }
    for (std::size_t k = 0; k < i; ++k) {
      if (!same_file(output.path, outputs[k].path)) continue;
      throw Error(Errc::kInvalidArgument, fmt::format("{} and {} name the same file ({}); give each its own",
                                                      outputs[k].option, output.option, output.path));
    }
  }
}

void check_outputs(const Options& options, int ranks) {
  std::vector<OutputFile> outputs;
  const auto add = [&](const char* option, const std::string& path) {
    if (!path.empty()) outputs.push_back({option, path});
  };
  add("--db", options.db_file);
  add("--record-replay", options.record_replay_file);
  const std::string& timeline = options.engine.timeline_filename;
  if (!timeline.empty()) add("--timeline-filename", timeline_path(timeline, 0));
  require_files_of_their_own(outputs);
  // Compare the ranks' traces with the other outputs. The traces have different names, so they are not compared with
  // one another.
  for (int rank = 1; rank < ranks && !timeline.empty(); ++rank) {
    const std::string trace = timeline_path(timeline, rank);
    for (const OutputFile& output : outputs) {
      if (!same_file(trace, output.path)) continue;
      throw Error(Errc::kInvalidArgument,
                  fmt::format("{} is the file of rank {}'s --timeline-filename ({}); give each its own", output.option,
                              rank, trace));
    }
  }
  if (!options.record_replay_file.empty()) check_replay_target(options.record_replay_file);
  for (int rank = 0; rank < ranks && !timeline.empty(); ++rank) check_trace_target(timeline_path(timeline, rank));
}

}  // namespace hvd::bench
