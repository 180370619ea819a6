#include "bench/cli/preflight.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "bench/cli/values.h"
#include "engine/base/error.h"
#include "models/zoo/zoo.h"

namespace hvd::bench {
namespace {

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
  throw Error(Errc::kInvalidArgument, "--model: '" + model + "' is not one of " + list + did_you_mean(model, known));
}

}  // namespace

Setup check_model(const Options& options, GpuBackend* gpus) {
  if (options.replay_file.empty()) check_model_name(options.model);
  Setup setup = settle(options, gpus);
  if (!setup.replay) models::build_model(setup.model);  // for what it refuses; plain data, milliseconds
  return setup;
}

void check_replay_target(const Options& options) {
  const std::string& path = options.record_replay_file;
  if (path.empty()) return;
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
  // O_NONBLOCK: a pipe that nobody reads is refused instead of waited for.
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_NONBLOCK | O_CLOEXEC, 0666);
  if (descriptor < 0) {
    throw Error(Errc::kIo,
                path + ": cannot be written (" + std::strerror(errno) + "); give --record-replay a file that can");
  }
  ::close(descriptor);
  if (!there) ::unlink(path.c_str());
}

}  // namespace hvd::bench
