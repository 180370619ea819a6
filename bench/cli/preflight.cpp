#include "bench/cli/preflight.h"

#include <string>
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

Setup check_model(const Options& options) {
  if (options.replay_file.empty()) check_model_name(options.model);
  Setup setup = settle(options);
  if (!setup.replay) models::build_model(setup.model);  // for what it refuses; plain data, milliseconds
  return setup;
}

}  // namespace hvd::bench
