// hvd_bench: reads the environment, runs the application, and turns an exception into an exit code.
#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "bench/cli/application.h"
#include "bench/cli/console.h"
#include "bench/cli/launch.h"
#include "bench/store/process_start.h"
#include "bench/world/ranks.h"
#include "engine/base/error.h"
#include "engine/comm/device_communicator.h"

namespace hvd::bench {
namespace {

constexpr int kDefect = 9;  // exit code for an exception that is not an hvd::Error

/// Reads the environment of this process. main() calls it once; all other code gets the copy as an argument.
Environment process_environment() {
  Environment environment;
  if (environ == nullptr) return environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos || equals == 0) continue;  // not a variable with a name
    environment.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return environment;
}

/// Ends main(). If NCCL has not returned from an abort, its thread still uses NCCL, so no destructors may run.
int leave(int code) {
  if (comm::unfinished_aborts() > 0) std::_Exit(code);
  return code;
}

}  // namespace
}  // namespace hvd::bench

int main(int argc, char** argv) {
  using hvd::bench::Application;
  using hvd::bench::leave;
  using hvd::bench::process_environment;
  using hvd::bench::process_start;
  // A write to a closed pipe, or beyond a limit on file sizes, must return an error and not end the process.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  hvd::bench::occupy_standard_descriptors();
  try {
    Application application(std::vector<std::string>(argv, argv + argc), process_start(process_environment()));
    try {
      return leave(application.run());
    } catch (const hvd::Error& error) {
      return leave(application.fail(error));
    } catch (const std::bad_alloc&) {
      const hvd::Error refused(hvd::Errc::kOutOfMemory, "out of memory; use a smaller --batch-size or --image-size");
      return leave(application.fail(refused));
    } catch (const std::system_error& error) {
      return leave(application.fail(hvd::bench::resource_fault(error)));
    }
  } catch (const std::exception& error) {
    hvd::bench::say_error(fmt::format("unexpected: {}; this is a defect of hvd_bench, please report it", error.what()));
    return leave(hvd::bench::kDefect);
  }
}
