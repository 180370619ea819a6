#include "bench/cli/simulate/command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "bench/cli/bounded_text.h"
#include "bench/cli/registrar.h"
#include "bench/cli/simulate/costs_text.h"
#include "bench/measure/median.h"
#include "bench/train/trainer.h"
#include "bench/world/shipped_steps.h"
#include "bench/world/training_options.h"
#include "engine/base/align.h"
#include "engine/base/error.h"
#include "engine/base/hash.h"
#include "engine/base/json.h"
#include "engine/core/bucket_plan.h"
#include "engine/sim/step_simulator.h"
#include "models/replay/replay.h"

namespace hvd::bench {
namespace {

constexpr const char* kSimulateDescription =
    "hvd_bench simulate simulates training steps on N ranks by the engine's own schedule, from a recorded step and a\n"
    "text with the costs of everything else (docs/prediction.md), and prints one line of JSON for each draw.";
constexpr std::size_t kMaxProfileBytes = std::size_t{4} << 20;  // profiles of real networks have some 20 KB
constexpr double kMaxWork = 2e10;                               // ranks x steps x collectives; each takes 2 to 6 ns

/// The options of training that decide about the schedule, and the text.
OptionTable simulate_table(SimulateCommand& command) {
  constexpr std::array<std::string_view, 8> kKnown{
      "--replay",    "--replay-shrink",       "--schedule",      "--allreduce-dtype", "--fp16-allreduce",
      "--bucket-mb", "--fusion-threshold-mb", "--cache-capacity"};
  OptionTable table = training_table(command.options);
  std::erase_if(table.rows(), [&](const OptionRow& row) {
    return std::find(kKnown.begin(), kKnown.end(), row.names) == kKnown.end();
  });
  table.group("What it costs");
  table.path("--costs", "FILE", "Worlds to simulate and what everything costs there; -: standard input", {},
             command.costs_file);
  return table;
}

/// What all simulated worlds have in common.
struct Step {
  sim::World world;
  std::string plan_hash;  ///< "" if the schedule has no buckets
};

Step make_step(const models::ReplayProfile& profile, const CostsText& costs, const Options& options) {
  Step step;
  sim::World& world = step.world;
  const bool host = costs.reducer == sim::Reducer::kEngineThread;
  world.schedule = options.engine.schedule;
  world.reducer = costs.reducer;
  world.negotiation = options.engine.negotiation;
  world.noise = costs.noise;
  world.profile.backward_end_seconds = profile.backward_end_seconds;
  world.profile.update_seconds = profile.update_seconds;
  // On CPUs 16-bit types are used between nodes only.
  if (!host) world.profile.dtype = options.allreduce.value_or(DataType::kF32);
  std::vector<core::GradientInfo> gradients;
  std::size_t offset = 0;
  for (const auto& gradient : profile.gradients) {
    world.profile.gradients.push_back({.offset = offset,
                                       .count = gradient.count,
                                       .submit_seconds = host ? gradient.ready_seconds : gradient.submit_seconds,
                                       .ready_seconds = gradient.ready_seconds});
    gradients.push_back({gradient.name, offset, gradient.count});
    offset = align_up(offset + gradient.count, costs.align);
  }
  if (!by_bucket(world.schedule)) return step;
  core::BucketOptions buckets = options.engine.buckets;
  buckets.first_bucket_bytes = std::min(buckets.first_bucket_bytes, buckets.bucket_bytes);
  core::BucketPlan plan = core::plan_buckets(gradients, world.profile.dtype, Trainer::kReduction, buckets);
  world.buckets = std::move(plan.buckets);
  step.plan_hash = hex64(plan.hash);
  return step;
}

/// Errors: invalid_argument if the simulation would take very long.
void check_work(const CostsText& costs, const sim::World& world, const std::string& file) {
  const std::size_t gradients = world.profile.gradients.size();
  const auto collectives = static_cast<double>(1 + (by_bucket(world.schedule) ? world.buckets.size() : gradients));
  std::size_t copied = gradients;  // by each draw
  for (const sim::NodeFactors& node : costs.noise.nodes) copied += node.size() * node.front().size();
  double work = 0;
  for (const CostsWorld& one : costs.worlds) {
    const double steps = static_cast<double>(costs.steps) * one.ranks.count * collectives;
    work += static_cast<double>(one.draws.size()) * (static_cast<double>(copied) + steps);
    if (work > kMaxWork) {
      throw Error(Errc::kInvalidArgument,
                  fmt::format("{}:{}: with this world, ranks x steps x collectives of all draws are "
                              "more than {:g}; ask for fewer in one text",
                              file, one.line, kMaxWork));
    }
  }
}

std::string simulate_draw(sim::World world, const CostsDraw& draw, std::size_t steps) {
  world.costs = draw.costs;
  world.compute_factor = draw.compute_factor;
  world.noise.common_steps = draw.common_steps;
  for (sim::Gradient& gradient : world.profile.gradients) {
    gradient.submit_seconds += draw.shift_seconds;
    gradient.ready_seconds += draw.shift_seconds;
  }
  sim::StepSimulator simulator(std::move(world));
  std::vector<double> seconds;
  sim::StepResult sum;
  for (std::size_t s = 0; s < steps; ++s) {
    const sim::StepResult step = simulator.step();
    seconds.push_back(step.step);
    sum.exposed += step.exposed;
    sum.stragglers += step.stragglers;
    sum.control += step.control;
    sum.slowed += step.slowed;
    sum.overlapped += step.overlapped;
    sum.update += step.update;
    sum.cycles += step.cycles;
    sum.batches += step.batches;
  }
  const auto mean = [steps](auto total) {
    return json_number(static_cast<double>(total) / static_cast<double>(steps));
  };
  const auto& [large, small] = simulator.messages();
  return fmt::format(R"("step": {}, "exposed": {}, "stragglers": {}, "control": {}, "slowed": {}, "overlapped": {}, )"
                     R"("update": {}, "cycles": {}, "batches": {}, "messages": [[{}, {}], [{}, {}]])",
                     json_number(median(seconds)), mean(sum.exposed), mean(sum.stragglers), mean(sum.control),
                     mean(sum.slowed), mean(sum.overlapped), mean(sum.update), mean(sum.cycles), mean(sum.batches),
                     large.least, large.most, small.least, small.most);
}

}  // namespace

SimulateCommand parse_simulate(const std::vector<std::string>& argv) {
  SimulateCommand command;
  OptionTable table = simulate_table(command);
  CLI::App app(kSimulateDescription, "hvd_bench simulate");
  const std::vector<std::string> rest = parse_own_options(app, table, argv, command.help);
  if (!command.help.empty()) return command;
  if (!rest.empty()) {
    throw Error(Errc::kInvalidArgument, fmt::format("'{}': 'hvd_bench simulate' takes no such option; see hvd_bench "
                                                    "simulate --help",
                                                    rest.front()));
  }
  if (command.options.replay_file.empty() || command.costs_file.empty()) {
    throw Error(Errc::kInvalidArgument, "simulate needs both: --replay FILE and --costs FILE");
  }
  return command;
}

std::string simulate(const SimulateCommand& command) {
  const Options& options = command.options;
  const std::string file = command.costs_file == "-" ? kStandardInput : command.costs_file;
  const std::string recorded = step_file(options.replay_file);
  const models::ReplayProfile profile = models::shrink_gradients(
      models::parse_replay(read_text(recorded, kMaxProfileBytes), recorded), options.replay_shrink);
  const CostsText costs = parse_costs(read_text(file, kMaxCostsBytes), file);
  if (options.engine.schedule == Schedule::kSharded &&
      (costs.reducer != sim::Reducer::kEngineThread || options.allreduce.value_or(DataType::kF32) != DataType::kF32)) {
    throw Error(Errc::kUnsupported, "--schedule sharded exchanges fp32 in host memory; take 'device host' and fp32");
  }
  Step step = make_step(profile, costs, options);
  check_work(costs, step.world, file);
  std::string lines;
  for (const CostsWorld& world : costs.worlds) {
    step.world.ranks = world.ranks;
    for (std::size_t d = 0; d < world.draws.size(); ++d) {
      step.world.seed = costs.seed + d;  // draws of all worlds with one number have the same luck
      try {
        lines += fmt::format(R"({{"ranks": {}, "draw": {}, {}{}}})", world.ranks.count, d,
                             simulate_draw(step.world, world.draws[d], costs.steps),
                             step.plan_hash.empty() ? "" : fmt::format(R"(, "plan_hash": "{}")", step.plan_hash));
        lines += '\n';
      } catch (const Error& error) {
        throw Error(error.code(), fmt::format("{}:{}: {}", file, world.draws[d].line, error.what()));
      }
    }
  }
  return lines;
}

}  // namespace hvd::bench
