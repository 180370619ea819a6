#include "bench/cli/run_facts.h"

#include <cstdint>
#include <string>

#include "engine/base/json.h"

namespace hvd::bench {

void add_run_facts(const Options& options, const Provenance& process, RunRecord& run) {
  run.provenance.insert(process.begin(), process.end());
  const auto add = [&](const char* key, const std::string& value, bool in_fingerprint) {
    run.provenance.insert({std::string("option.") + key, ProvenanceFact{value, in_fingerprint}});
  };
  for (const auto& [key, value] : options.labels) {
    run.provenance.insert({"label." + key, ProvenanceFact{value, false}});
  }
  add("deadline_ms", std::to_string(options.engine.deadline.timeout.count()), false);
  add("startup_deadline_ms", std::to_string(options.startup_deadline.timeout.count()), false);
  add("classes", std::to_string(options.classes), true);
  add("num_warmup_batches", options.num_warmup_batches ? std::to_string(*options.num_warmup_batches) : "until steady",
      false);
  add("num_iters", options.num_iters ? std::to_string(*options.num_iters) : "until narrow", false);
  add("target_interval", json_number(options.target_interval), false);
  add("max_time_s", std::to_string(options.max_time.count()), false);
  add("efficiency", options.efficiency ? "yes" : "no", false);
  add("check", options.check ? "yes" : "no", false);
}

}  // namespace hvd::bench
