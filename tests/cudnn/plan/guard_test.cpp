// Compares plans and steps with digests of earlier plans and steps, whose code ran on GPUs. While the digests agree,
// the code can be moved and renamed without a test on a GPU. The test covers the four networks at batch 256, every type
// and level, and both ways to read images (columns and padded). It compares (1) the plan for the properties of an H200
// and of an A100: launches, engines, order, places and bytes; (2) every call that the step makes on a fake GPU:
// streams, order, ranges and events; (3) how many of the winners recorded on the H200 are found. The digests are in
// golden/guard.txt (golden.h). The first line of that file names the version of cuDNN whose heuristics made the
// digests. With another version, or without cuDNN, the test is skipped with the reason.
//
//   ctest -R cudnn_guard_test                          compares the default options
//   ctest -R cudnn_guard_all_test                      compares all cases
//   HVD_GUARD_ALL=1 HVD_GUARD_WRITE=1 (environment)    writes the digests of all cases to golden/guard.txt. Only for
//                                                      intended changes of plans, with the reason in the commit
//   HVD_GUARD_BEFORE=FOLDER                            shows the first line that differs from the texts in FOLDER.
//                                                      Another commit wrote them to its build folder,
//                                                      tests/cudnn/guard
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <utility>

#include "engine/base/hash.h"
#include "models/cudnn/plan/winners.h"
#include "models/cudnn/run/executor.h"
#include "models/graph/autodiff.h"
#include "models/zoo/zoo.h"
#include "tests/cudnn/lowering/program_check.h"
#include "tests/cudnn/plan/devices.h"
#include "tests/cudnn/plan/golden.h"
#include "tests/cudnn/plan/plan_text.h"
#include "tests/cudnn/run/recorder.h"
#include "tests/gpu/call_log.h"

namespace hvd::models::cudnn::testing::guard_test {
namespace {

using namespace std::chrono_literals;

constexpr std::int64_t kBatch = 256;  // the recorded winners are for this batch

bool wanted(const char* variable) { return std::getenv(variable) != nullptr; }
std::string given(const char* variable) {
  const char* const value = std::getenv(variable);
  return value == nullptr ? "" : value;
}

/// Returns a network whose weights all start at zero. Drawing random weights would waste time, because nothing is
/// computed.
Graph network(const std::string& model) {
  Graph graph = differentiate(build_model({.model = model, .batch_size = kBatch}));
  for (Parameter& parameter : graph.parameters) parameter.init = Init::kZero;
  return graph;
}

// Returns the name of a case. The name does not say that images are padded at level 0, because there they always are.
std::string case_name(const std::string& device, const Graph& graph, const PlanOptions& options) {
  const FusionOptions& fusion = options.fusion;
  return device + " " + graph.model + " " + std::string(name(options.compute)) + ", gradients " +
         std::string(hvd::name(options.gradient)) + ", level " + std::to_string(fusion.level) +
         (fusion.level > 0 && fusion.images == ImageLayout::kPadded ? ", padded" : "") +
         (options.deterministic ? ", deterministic" : "");
}

std::vector<PlanOptions> every_option() {
  std::vector<PlanOptions> list;
  for (const ComputeType compute : {ComputeType::kFp32, ComputeType::kTf32, ComputeType::kFp16, ComputeType::kBf16}) {
    for (const DataType gradient : std::set{storage(compute), DataType::kF32}) {
      for (const int level : {0, 1, 2}) {
        PlanOptions options{.compute = compute, .gradient = gradient, .fusion = {.level = level}};
        list.push_back(options);
        if (compute == ComputeType::kFp32) continue;  // in fp32 images never get additional channels
        if (level > 0) {
          options.fusion.images = ImageLayout::kPadded;
          list.push_back(options);
          options.fusion.images = ImageLayout::kColumns;
        }
        if (level < 2) continue;
        options.deterministic = true;
        list.push_back(options);
      }
    }
  }
  return list;
}

class Sink final : public GradientSink {
 public:
  explicit Sink(test::CallLog& log) : log_(log) {}
  void gradient_ready(std::size_t parameter) override { log_.say("gradient " + std::to_string(parameter)); }

 private:
  test::CallLog& log_;
};

/// Returns the calls of a step on a fake GPU, from the step's construction to its destruction. The calls are those of
/// an eager step, of a captured step, and of loads of images that are new, kept on the GPU, or already loaded. Nothing
/// is computed.
std::vector<std::string> step_lines(const Graph& graph, const PlanSource& plan_source, const ExecutorOptions& options) {
  test::FakeWorld world(1);
  test::FakeRuntime gpu(world, 0, {.memory_bytes = std::size_t{1} << 40, .uuid = {}, .dry = true});
  Recorder recorder(gpu);
  recorder.dry = true;
  const auto count = static_cast<std::size_t>(graph.tensor(graph.images).shape.count());
  const gpu::PinnedMemory images = gpu.allocate_pinned(count * sizeof(float), "zeroes");
  const std::vector<std::int32_t> labels(static_cast<std::size_t>(graph.batch_size));
  Batch batch{.images = {reinterpret_cast<const float*>(images->bytes.data()), count}, .labels = labels};

  test::CallLog log(gpu);
  {
    const Backends backends{
        .cudnn = Library::with(fake_cudnn()), .cublaslt = CublasLt::with(fake_cublaslt()), .kernels = host_kernels()};
    gpu::DeviceMemory gradients;
    const auto step = make_executor(graph, plan_source, options, gpu, backends,
                                    std::make_unique<GroupLauncher>(gpu, backends, 1), [&](std::size_t bytes) {
                                      gradients = gpu.allocate(bytes, "the gradients");
                                      return gradients->bytes;
                                    });
    const MemoryReport memory = step->memory();
    log.say("bytes: parameters " + std::to_string(memory.parameters) + " gradients " +
            std::to_string(memory.gradients) + " momentum " + std::to_string(memory.momentum) + " master " +
            std::to_string(memory.master) + " activations " + std::to_string(memory.activations) + " workspace " +
            std::to_string(memory.workspace));
    log.say("engines: " + step->engines());
    Sink sink(log);
    const auto enqueue = [&] {
      step->enqueue_forward_backward(sink);
      step->enqueue_update();
    };
    const auto wait = [&] { gpu.synchronize(step->compute_stream(), Deadline::after(60s), "the fake step"); };
    log.say("eager");
    step->load(batch, Deadline::after(60s));
    step->set_sgd({.learning_rate = 0.01});
    enqueue();
    wait();
    log.say("images that are kept, and the same again");
    for (batch.content = 7; batch.step < 2; ++batch.step) step->load(batch, Deadline::after(60s));
    step->set_sgd({.learning_rate = 0.02});
    step->keep_loss_in(1);
    log.say("captured");
    gpu::Capture capture(gpu, step->compute_stream());
    enqueue();
    const gpu::Graph captured = capture.finish();
    gpu.launch(captured, step->compute_stream());
    wait();
    log.say("weights from elsewhere");
    step->state_changed();
    wait();
    log.say("the end");
  }
  EXPECT_EQ(world.violations(), std::vector<std::string>());
  EXPECT_EQ(fake_cudnn_objects(), 0U);
  return log.lines();
}

/// Returns the calls of a step that runs `plan`.
std::vector<std::string> step_lines(const Graph& graph, const Plan& plan) {
  const PlanSource plan_source{.fusions = {plan.options.fusion},
                               .plan = [&](const Graph&, const FusionOptions&, const EngineFailures& failed) {
                                 EXPECT_TRUE(failed.empty());
                                 return plan;
                               }};
  return step_lines(graph, plan_source, {});
}

/// All tests share one planner for each GPU and one file of digests. A planner remembers cuDNN's answers.
class Guard : public ::testing::Test {
 protected:
  static void TearDownTestSuite() {
    planners().clear();
    golden().reset();
  }
  void SetUp() override {
    if (const std::string reason = no_planner(); !reason.empty()) GTEST_SKIP() << reason;
    if (golden() == nullptr) {
      golden() = std::make_unique<Golden>(
          GoldenOptions{.file = HVD_GUARD_GOLDEN,
                        .first_line = "hvd_bench, guard of models/cudnn 1, cuDNN " + planner("h200").cudnn_version(),
                        .texts = HVD_GUARD_TEXTS,
                        .before = given("HVD_GUARD_BEFORE"),
                        .write = wanted("HVD_GUARD_WRITE")});
    }
    if (!golden()->unusable().empty()) GTEST_SKIP() << golden()->unusable();
  }

  static Planner& planner(const std::string& device) {
    std::unique_ptr<Planner>& its = planners()[device];
    if (!its) its = make_planner(device_properties(device));
    return *its;
  }
  static std::map<std::string, std::unique_ptr<Planner>>& planners() {
    static std::map<std::string, std::unique_ptr<Planner>> by_device;
    return by_device;
  }
  static std::unique_ptr<Golden>& golden() {
    static std::unique_ptr<Golden> file;
    return file;
  }
  static void check(const std::string& name, const std::string& figures, const std::vector<std::string>& lines) {
    const std::string difference = golden()->check(name, figures, lines);
    EXPECT_TRUE(difference.empty()) << difference;
  }
  static void check_plan(const std::string& device, const Graph& graph, const PlanOptions& options, bool step) {
    const Plan plan = planner(device).plan(graph, options);
    EXPECT_EQ(violations(graph, plan.program), std::vector<std::string>());
    const std::string name = case_name(device, graph, options);
    check(name + ", plan", plan_figures(plan), plan_lines(graph, plan));
    if (step) check(name + ", step", "", step_lines(graph, plan));
  }
};

const std::vector<std::string> kNetworks{"resnet50", "resnet101", "vgg16", "inception3"};

TEST_F(Guard, PlansAndStepsOfTheDefaultsAreWhatTheyWere) {
  for (const std::string& model : kNetworks) {
    const Graph graph = network(model);
    for (const ComputeType compute : {ComputeType::kFp16, ComputeType::kBf16}) {
      const PlanOptions options{.compute = compute, .gradient = DataType::kF32, .fusion = {}};
      check_plan("h200", graph, options, true);
      if (model == "resnet50" && compute == ComputeType::kFp16) check_plan("a100", graph, options, true);
    }
  }
}

TEST_F(Guard, EveryPlanAndStepIsWhatItWas) {
  if (!wanted("HVD_GUARD_ALL")) GTEST_SKIP() << "HVD_GUARD_ALL is not set; cudnn_guard_all_test sets it";
  for (const std::string device : {"h200", "a100"}) {
    for (const std::string& model : kNetworks) {
      const Graph graph = network(model);
      for (const PlanOptions& options : every_option()) {
        // A step's calls depend only on the plan, not on the GPU. For the second GPU, only steps with the default
        // options run.
        const bool step = device == "h200" || options.fusion == FusionOptions{};
        check_plan(device, graph, options, step);
      }
      planners().clear();  // frees memory: cuDNN's engine lists for one network take more than a gigabyte
    }
    EXPECT_EQ(golden()->unchecked(device), std::vector<std::string>()) << "no longer there";
  }
}

/// How many recorded winners a plan finds. Winners are found by signature, file name, and the texts of engines and ways
/// to fuse. Without a driver cuDNN omits some engines, so some winners are not among the candidates on this machine.
struct Found {
  std::size_t own = 0, borrowed = 0;  ///< own: winners in the plan's own file; borrowed: usable winners in other files
  std::size_t asked = 0, known = 0;   ///< asked: signatures of cuDNN's groups; known: those that have a winner
  std::size_t chosen = 0;             ///< number of signatures whose winner is among the candidates
  std::string kept_way = "none";      ///< the file's way to fuse: its index among the ways that are tried
  std::vector<std::uint64_t> products = {};  ///< signatures of the matrix products that have a winner
};

Found find_winners(Plan& plan, const std::vector<FusionOptions>& ways) {
  const std::string folder = HVD_WINNERS;
  plan.cublaslt = "13.1.0";  // the version of cuBLASLt with which the winners were recorded
  const Winners own = load_winners(folder + "/" + winners_file_name(plan), plan);
  std::vector<Winner> all = borrow_winners(folder, plan, own.list);
  std::set<std::uint64_t> wanted;
  for (const EngineCandidates& engine : plan.engines) wanted.insert(signature_hash(engine.signature));
  std::erase_if(all,
                [&](const Winner& winner) { return winner.algorithm.empty() && !wanted.contains(winner.signature); });
  Found counts{.own = own.list.size(), .borrowed = all.size(), .asked = plan.engines.size()};
  all.insert(all.end(), own.list.begin(), own.list.end());
  std::set<std::uint64_t> signatures;
  for (const Winner& winner : all) {
    if (winner.algorithm.empty()) signatures.insert(winner.signature);
    if (!winner.algorithm.empty()) counts.products.push_back(winner.signature);
  }
  for (const EngineCandidates& engine : plan.engines)
    counts.known += signatures.count(signature_hash(engine.signature));
  counts.chosen = counts.asked - choose_winners(plan, all);
  for (std::size_t i = 0; i < ways.size(); ++i) {
    if (own.fusion == text(ways[i])) counts.kept_way = std::to_string(i);
  }
  return counts;
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find("; ", at), text.size());
    parts.push_back(text.substr(at, end - at));
    at = end + 2;
  }
  return parts;
}

TEST_F(Guard, WinnersRecordedOnTheH200AreFound) {
  for (const std::string model : {"resnet101", "vgg16", "inception3"}) {
    const Graph graph = network(model);
    for (const ComputeType compute : {ComputeType::kFp16, ComputeType::kBf16}) {
      const PlanOptions options{.compute = compute, .gradient = DataType::kF32, .fusion = {}};
      const std::vector<FusionOptions> ways = worth_timing(options.fusion);
      const auto plan = [&](const Graph& step_graph, const FusionOptions& fusion, const EngineFailures& failed) {
        EXPECT_TRUE(failed.empty());
        PlanOptions way = options;
        way.fusion = fusion;
        return planner("h200").plan(step_graph, way);
      };
      // Here the step itself loads the winners and uses the way to fuse that their file names.
      const std::vector<std::string> lines =
          step_lines(graph, {.fusions = ways, .plan = plan}, {.winners_folder = HVD_WINNERS});
      check("winners " + case_name("h200", graph, options) + ", step", "", lines);
      const auto engines = std::find_if(lines.begin(), lines.end(),
                                        [](const std::string& line) { return line.starts_with("engines: "); });
      ASSERT_NE(engines, lines.end());
      for (const FusionOptions& fusion : ways) {
        Plan way = plan(graph, fusion, {});
        const Found counts = find_winners(way, ways);
        const auto products = std::count_if(counts.products.begin(), counts.products.end(), [&](std::uint64_t product) {
          return engines->find(hex64(product)) != std::string::npos;
        });
        std::ostringstream figures;
        figures << "own " << counts.own << " borrowed " << counts.borrowed << " asked " << counts.asked << " known "
                << counts.known << " chosen " << counts.chosen << " products " << products << " kept-way "
                << counts.kept_way;
        check("winners " + case_name("h200", graph, way.options), figures.str(), split(chosen_text(way)));
      }
    }
  }
  EXPECT_EQ(golden()->unchecked("winners"), std::vector<std::string>()) << "no longer there";
}

}  // namespace
}  // namespace hvd::models::cudnn::testing::guard_test
