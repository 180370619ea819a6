#include "bench/world/shipped_steps.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <vector>

#include "bench/world/values.h"
#include "engine/base/error.h"
#include "engine/base/files.h"

namespace hvd::bench {
namespace {

namespace fs = std::filesystem;

/// The names are fixed here, so that a name means the same in a program that has lost its files.
std::vector<std::string> shipped() { return {"gpt2", "llama"}; }

bool ships(const std::string& named) {
  const std::vector<std::string> names = shipped();
  return std::find(names.begin(), names.end(), named) != names.end();
}

}  // namespace

std::string step_file(const std::string& named) {
  std::error_code ignored;
  if (ships(named)) {
    const fs::path bin = fs::path(program_file()).parent_path();
    const fs::path file = bin.parent_path() / "share/hvd_bench/steps" / (named + ".replay");
    if (fs::exists(file, ignored)) return file.string();
    throw Error(Errc::kIo, fmt::format("{}: this recorded step ships with hvd_bench, but {} is not there; install "
                                       "share/hvd_bench/steps with the program (for a file of your own: ./{})",
                                       named, file.string(), named));
  }
  if (named.find_first_of("/.") == std::string::npos && !fs::exists(named, ignored)) {
    throw Error(Errc::kIo, fmt::format("{}: there is no such file, and the steps that ship are {}{}", named,
                                       fmt::join(shipped(), ", "), did_you_mean(named, shipped())));
  }
  return named;
}

std::string unplayed_file(const std::string& named) {
  std::error_code ignored;
  if (!ships(named) || !fs::is_regular_file(named, ignored)) return {};
  return fmt::format("{0} is the step that ships with hvd_bench, not the file {0} of this folder, which is ./{0}",
                     named);
}

}  // namespace hvd::bench
