#include "bench/session/other_programs.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "bench/store/host_facts.h"

namespace hvd::bench {

std::string OtherUse::text() const { return fmt::format("{:.2f} of {}", used, processors); }

OtherPrograms::OtherPrograms(const Engine& engine) : engine_(engine), host_seconds_before_(host_processor_seconds()) {}

std::optional<OtherUse> OtherPrograms::use(std::span<const Answer> answers) const {
  if (host_seconds_before_ <= 0) return std::nullopt;
  const double seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
  double others = host_processor_seconds() - host_seconds_before_;
  const std::vector<std::string>& hosts = engine_.topology().hosts;
  for (std::size_t r = 0; r < answers.size(); ++r) {
    if (hosts[r] == hosts[0]) others -= answers[r].processor_seconds;
  }
  return OtherUse{std::max(others / seconds, 0.0), ::sysconf(_SC_NPROCESSORS_ONLN)};
}

}  // namespace hvd::bench
