// The Planner that asks cuDNN: lowers a graph, asks cuDNN for engines, and lays out memory.
#include <dlfcn.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "models/cudnn/plan/engine_heuristics.h"
#include "models/cudnn/plan/plan.h"

namespace hvd::models::cudnn {
namespace {

// Returns the value of "deviceName" in cuDNN's description of a GPU.
std::string device_name(const std::string& properties) {
  const std::string key = "\"deviceName\":";
  const std::size_t at = properties.find(key);
  const std::size_t open = at == std::string::npos ? at : properties.find('"', at + key.size());
  const std::size_t close = open == std::string::npos ? open : properties.find('"', open + 1);
  return close == std::string::npos ? "unnamed GPU" : properties.substr(open + 1, close - open - 1);
}

bool has_driver_library() {
  void* library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (library != nullptr) dlclose(library);
  return library != nullptr;
}

// On an engine compiled at run time, a convolution with statistics in its epilogue takes three times as long as without
// (H200, cuDNN 9.19, bf16, ResNet-101 at batch 256: 25.4 ms of a step instead of 8.8 ms). A batch norm that reads its
// input a second time, for the statistics, costs less than statistics in the epilogue.
constexpr const char* kSlowSums = "only compiled at run time, which is slower than a pass of its own";
bool sums_beside_product(const Group& group) {
  return holds(group, {OpType::kConv}) && holds(group, {OpType::kStatistics});
}

class CudnnPlanner final : public Planner {
 public:
  CudnnPlanner(std::shared_ptr<const Library> library, Target target, std::string device)
      : library_(std::move(library)), target_(std::move(target)), device_(std::move(device)) {}

  Plan plan(const Graph& graph, const PlanOptions& options) override {
    Oracle oracle(*this, options);
    Program program = lower(graph, lowering_options(options), oracle);
    Plan plan = assemble(graph, options, std::move(program), [&](const Program& lowered, const Group& group) {
      return oracle.answer(lowered, group, std::max(options.candidates, std::size_t{1})).choices;
    });
    plan.cudnn = cudnn_version();
    plan.device = device_;
    return plan;
  }

  Questions questions() const override { return questions_; }
  std::string cudnn_version() const override { return library_->version().text(); }

 private:
  class Oracle final : public EngineOracle {
   public:
    Oracle(CudnnPlanner& planner, const PlanOptions& options)
        : planner_(planner), options_(options), filter_(filter_of(options)) {}

    std::string refusal(const Program& program, const Group& group) override {
      std::string why = rejection(group, options_);
      return why.empty() ? answer(program, group, 1).why : why;
    }

    struct Answer {
      std::vector<EngineChoice> choices;
      std::string why;  ///< why `choices` is empty
    };
    /// Returns up to `most` engines that pass the filter and have not failed, from the first of cuDNN's lists with such
    /// an engine.
    Answer answer(const Program& program, const Group& group, std::size_t most) {
      Answer answer;
      std::set<std::string> reasons;
      const std::string key = signature(program, group);
      for (const HeuristicsMode mode : {HeuristicsMode::kA, HeuristicsMode::kB, HeuristicsMode::kFallback}) {
        // For fused groups, cuDNN 9.19 gives the same list in mode B as in mode A. Asking for mode B takes as long as
        // asking for mode A.
        if (mode == HeuristicsMode::kB && group.operations.size() > 1) continue;
        EngineList& list = planner_.ask(program, group, mode);
        for (std::size_t i = 0; answer.choices.size() < most && list.at(i) != nullptr; ++i) {
          const EngineChoice& choice = *list.at(i);
          std::string why = rejection(choice, filter_);
          if (why.empty() && choice.compiled_at_run_time && sums_beside_product(group)) {
            answer.why = kSlowSums;  // cuDNN lists precompiled engines first, so all later engines are slow too
            break;
          }
          if (const std::string* failure = find_failure(options_.failed, key, choice.text()); failure != nullptr) {
            why = *failure;
          }
          if (why.empty()) {
            answer.choices.push_back(choice);
          } else {
            reasons.insert(std::move(why));
          }
        }
        if (!answer.choices.empty() || !answer.why.empty()) return answer;
        if (!list.why().empty()) reasons.insert(list.why());
      }
      for (const std::string& reason : reasons) answer.why += (answer.why.empty() ? "" : "; ") + reason;
      if (answer.why.empty()) answer.why = "no engine knows it";
      if (!has_driver_library()) {
        answer.why += " (engines compiled at run time could not answer: there is no libcuda.so.1)";
      }
      return answer;
    }

   private:
    CudnnPlanner& planner_;
    const PlanOptions& options_;
    EngineFilter filter_;
  };

  EngineList& ask(const Program& program, const Group& group, HeuristicsMode mode) {
    const auto [known, first] = answers_.try_emplace(std::to_string(static_cast<int>(mode)) + signature(program, group),
                                                     *library_, target_, program, group, mode);
    ++(first ? questions_.asked : questions_.known);
    return known->second;
  }

  std::shared_ptr<const Library> library_;
  Target target_;
  std::string device_;
  std::map<std::string, EngineList> answers_;  // destroyed before library_ and target_, which the lists refer to
  Questions questions_;
};

}  // namespace

std::string planner_unsupported_reason() {
  try {
    const auto library = Library::load();
    if (library->version() >= kDevicelessVersion) return {};
    return library->name() + " is cuDNN " + library->version().text() + "; planning without a device needs " +
           kDevicelessVersion.text();
  } catch (const Error& error) {
    return error.what();
  }
}

std::unique_ptr<Planner> make_planner(const std::string& device_properties) {
  auto library = Library::load();
  Target target(*library, device_properties);
  return std::make_unique<CudnnPlanner>(std::move(library), std::move(target), device_name(device_properties));
}

std::unique_ptr<Planner> make_planner(std::shared_ptr<const Library> library, cudnnHandle_t handle,
                                      const std::string& device) {
  return std::make_unique<CudnnPlanner>(std::move(library), Target(handle), device);
}

}  // namespace hvd::models::cudnn
