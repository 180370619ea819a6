#include "bench/world/unused_settings.h"

namespace hvd::bench {

std::vector<std::string> unused_settings(const std::function<bool(const char*)>& given, const Environment& environment,
                                         Schedule schedule) {
  std::vector<std::string> unused;
  const auto look = [&](bool used, const char* option, const char* variable) {
    if (used) return;
    if (given(option)) {
      unused.emplace_back(option);
    } else if (!value_of(environment, variable).empty()) {
      unused.emplace_back(variable);
    }
  };
  const bool negotiated = schedule == Schedule::kNegotiated;
  look(schedule == Schedule::kStatic || schedule == Schedule::kSharded, "--bucket-mb", "");
  look(negotiated, "--fusion-threshold-mb", "HOROVOD_FUSION_THRESHOLD");
  look(negotiated, "--cycle-time-ms", "HOROVOD_CYCLE_TIME");
  look(negotiated, "--cache-capacity", "HOROVOD_CACHE_CAPACITY");
  return unused;
}

}  // namespace hvd::bench
