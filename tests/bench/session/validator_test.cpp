// Runs whole validations of real networks on loopback ranks, with faults in one rank's weights or times.
#include "bench/session/validator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <map>

#include "bench/session/session.h"
#include "bench/session/worker.h"
#include "bench/store/host_facts.h"
#include "bench/train/host_trainer.h"
#include "bench/world/setup.h"
#include "bench/world/training_options.h"
#include "tests/base/errors.h"
#include "tests/runtime/ranks.h"

namespace hvd::bench::validator_test {
namespace {

constexpr int kSteps = 10;
// Limit of a rank's slowdown, as a factor. Pauses of a busy machine never reach this factor in every step.
constexpr double kUnreachableThreshold = 900;

Options validation_options(int ranks) {
  Options options;
  options.model = "resnet50";
  options.image_size = 32;
  options.batch_size = 2;
  options.classes = 10;
  options.threads = 1;
  // A small learning rate keeps the probability of each class above 0. If a class had the probability 0, a change of
  // the class's bias would not change the loss.
  options.sgd.learning_rate = 1e-5;
  options.comm = CommBackend::kLoopback;
  options.ranks = ranks;
  options.validate = ValidateOptions{.steps = kSteps, .threshold = kUnreachableThreshold};
  settle_validation(options);
  return options;
}

/// The fault of one rank: `before` runs before the rank carries out a directive, `after` changes the rank's answer.
struct Fault {
  std::function<void(Trainer&, const Directive&)> before = [](Trainer&, const Directive&) {};
  std::function<void(Answer&)> after = [](Answer&) {};
};

struct Validated {
  Validation validation;
  RunRecord run;
};

/// Runs a validation in which rank r > 0 has the fault faults[r]. `at_start` may change the weights of rank 0. If
/// faults has a rank 0, then it is of another kind than the others, which are compared without it.
Validated validate(const Options& options, const std::map<int, Fault>& faults, int ranks_at_once,
                   const std::function<void(Trainer&)>& at_start = {}) {
  const bench::Setup setup = settle(options);
  Validated out;
  test::expect_all_good(
      test::on_ranks(options.ranks, test::patient_options(Schedule::kNone), [&](Engine& engine, int rank) {
        HostTrainer trainer(setup, engine, 1);
        trainer.start();
        SessionFacts facts;
        facts.comm = "loopback";
        facts.ranks_at_once = ranks_at_once;
        facts.kinds = gather_kinds(engine, kind_of_rank(trainer.train_step(), {}));
        if (rank == 0 && faults.contains(0)) facts.kinds[0].lines += "test=another kind\n";
        Worker worker(trainer, nullptr, {}, setup.seed);
        if (rank == 0) {
          RankGroup rank_group(engine, worker);
          const SessionObserver observer;
          const std::function<void(RunRecord&)> prepare = [&](RunRecord& /*run*/) {
            if (at_start) at_start(trainer);
          };
          Validator validator({options, setup, facts, trainer, rank_group, observer, prepare});
          validator.run();
          out = {validator.take_validation(), validator.take_run()};
        } else {
          const auto planted = faults.find(rank);
          Fault fault = planted == faults.end() ? Fault() : planted->second;
          for (;;) {
            const Directive directive = decode_directive(engine.broadcast_message({}, 0));
            if (directive.task == Task::kEnd) break;
            fault.before(trainer, directive);
            Answer answer = worker.execute(directive);
            fault.after(answer);
            engine.gather(encode(answer));
          }
        }
        engine.barrier();
      }));
  return out;
}

std::size_t parameter_named(Trainer& trainer, const std::string& name) {
  const auto slots = trainer.train_step().slots();
  const auto found = std::find_if(slots.begin(), slots.end(), [&](const auto& slot) { return slot.name == name; });
  EXPECT_NE(found, slots.end()) << name;
  return static_cast<std::size_t>(found - slots.begin());
}

void flip_bit(Trainer& trainer, const std::string& name, std::uint32_t bit) {
  const std::size_t parameter = parameter_named(trainer, name);
  std::vector<float> values(static_cast<std::size_t>(trainer.train_step().slots()[parameter].shape.count()));
  trainer.train_step().read_parameter(parameter, values);
  values[0] = std::bit_cast<float>(std::bit_cast<std::uint32_t>(values[0]) ^ (1U << bit));
  trainer.train_step().write_parameter(parameter, values);
}

/// Flips bit `bit` in weight 0 of tensor `name` before the directive with number `number` (1, 2, ...) among the
/// directives of kind `task`.
Fault flipped_before(Task task, int number, std::string name, std::uint32_t bit) {
  Fault fault;
  fault.before = [=, seen = 0](Trainer& trainer, const Directive& directive) mutable {
    if (directive.task == task && ++seen == number) flip_bit(trainer, name, bit);
  };
  return fault;
}

using Kind = ValidationFinding::Kind;

// Flipping an exponent bit in the last layer's bias changes the loss of every image.
TEST(Validator, NamesTheRankWithTheFlippedBitAndTheStep) {
  const Validated outcome = validate(validation_options(4), {{2, flipped_before(Task::kSumStep, 3, "fc.bias", 30)}}, 4);
  ASSERT_EQ(outcome.validation.findings.size(), 1U);
  const ValidationFinding& finding = outcome.validation.findings[0];
  EXPECT_EQ(finding.kind, Kind::kDiffers);
  EXPECT_EQ(finding.ranks, (std::vector<int>{2}));
  EXPECT_NE(finding.text.find("rank 2 (host "), std::string::npos) << finding.text;
  EXPECT_NE(finding.text.find("first in the gradients of step 3: "), std::string::npos) << finding.text;
  EXPECT_EQ(outcome.validation.exit_code(), 1);
  EXPECT_EQ(outcome.run.status, RunStatus::kComplete);
  EXPECT_EQ(outcome.run.checks, "failed: " + finding.text);
  const auto& ranks = outcome.validation.ranks;
  EXPECT_NE(ranks[2].weights, ranks[0].weights);
  EXPECT_EQ(ranks[1].weights, ranks[0].weights);
  EXPECT_EQ(ranks[3].gradients, ranks[0].gradients);
}

TEST(Validator, NamesTheTensorOfAFlipInTheLastWeights) {
  const Validated outcome =
      validate(validation_options(4), {{3, flipped_before(Task::kSumWeights, 2, "conv1.weight", 0)}}, 4);
  ASSERT_EQ(outcome.validation.findings.size(), 1U);
  const ValidationFinding& finding = outcome.validation.findings[0];
  EXPECT_EQ(finding.ranks, (std::vector<int>{3}));
  EXPECT_NE(finding.text.find("first in the weights after the last step: 1 of 161 tensors, the first of backward is "
                              "conv1.weight"),
            std::string::npos)
      << finding.text;
}

TEST(Validator, RankZeroIsARankLikeAnyOther) {
  const Validated outcome =
      validate(validation_options(4), {}, 4, [](Trainer& trainer) { flip_bit(trainer, "fc.bias", 30); });
  ASSERT_EQ(outcome.validation.findings.size(), 1U);
  const ValidationFinding& finding = outcome.validation.findings[0];
  EXPECT_EQ(finding.kind, Kind::kDiffers);
  EXPECT_EQ(finding.ranks, (std::vector<int>{0}));
  EXPECT_NE(finding.text.find("first in the weights before the first step: 1 of 161"), std::string::npos)
      << finding.text;
}

TEST(Validator, TwoRanksDisagreeAndNeitherIsNamed) {
  const Validated outcome = validate(validation_options(2), {{1, flipped_before(Task::kSumStep, 1, "fc.bias", 30)}}, 2);
  ASSERT_EQ(outcome.validation.findings.size(), 1U);
  const ValidationFinding& finding = outcome.validation.findings[0];
  EXPECT_EQ(finding.kind, Kind::kDisagree);
  EXPECT_EQ(finding.ranks, (std::vector<int>{0, 1}));
  EXPECT_NE(finding.text.find("the gradients of step 1"), std::string::npos) << finding.text;
  EXPECT_EQ(outcome.validation.exit_code(), 1);
}

// Ranks 1 to 5 answer with times that the test makes up. These times are far above rank 0's real times.
TEST(Validator, NamesTheSlowRank) {
  Options options = validation_options(6);
  options.validate->threshold = 0.02;
  constexpr double kSeconds = 1000;
  std::map<int, Fault> faults;
  for (int rank = 1; rank < 6; ++rank) {
    faults[rank].after = [rank](Answer& answer) {
      for (double& time : answer.samples.compute) time = rank == 4 ? 1.05 * kSeconds : kSeconds;
    };
  }
  const Validated outcome = validate(options, faults, 3);
  ASSERT_EQ(outcome.validation.findings.size(), 1U);
  const ValidationFinding& finding = outcome.validation.findings[0];
  EXPECT_EQ(finding.kind, Kind::kSlow);
  EXPECT_EQ(finding.ranks, (std::vector<int>{4}));
  EXPECT_NE(finding.text.find(") is 5.0 % [5.0, 5.0] slower"), std::string::npos) << finding.text;
  EXPECT_EQ(outcome.validation.turns, 2);
  EXPECT_EQ(outcome.run.provenance.at("validate.turns").value, "2");
  EXPECT_TRUE(outcome.run.provenance.at("validate.turns").in_fingerprint);
  EXPECT_EQ(outcome.run.checks.rfind("equal bits", 0), 0U) << outcome.run.checks;
}

// Rank 1 is about 6 % slower than ranks 2 and 3 in odd steps and equally fast in even ones. What other programs used is
// what the host used less what the ranks say of themselves, so a rank that claims much hides it, and one that claims
// less than nothing makes it up.
TEST(Validator, OtherLoadLowersTheCertaintyOfAVerdict) {
  if (host_processor_seconds() <= 0) GTEST_SKIP() << "the kernel does not tell what this host used";
  Options options = validation_options(4);
  options.validate->threshold = 0.02;
  const auto text_of = [&](double claimed_seconds) {
    std::map<int, Fault> faults{{0, {}}};
    for (int rank = 1; rank < 4; ++rank) {
      faults[rank].after = [=, step = 0](Answer& answer) mutable {
        for (double& time : answer.samples.compute) time = rank == 1 && step++ % 2 == 0 ? 1060 : 1000;
        if (answer.planned_bytes > 0) answer.processor_seconds = claimed_seconds;
      };
    }
    const Validated outcome = validate(options, faults, 4);
    EXPECT_EQ(outcome.validation.exit_code(), 3);
    for (const ValidationFinding& finding : outcome.validation.findings) {
      if (finding.ranks == std::vector<int>{1}) return finding.text;
    }
    return std::string("rank 1 has no finding");
  };
  test::expect_contains(text_of(1e9), ") may be slow: 3.0 % [");
  const std::string busy = text_of(-1e9);
  test::expect_contains(busy, ") is not clear: 3.0 % [");
  test::expect_contains(busy, ", but other programs used ");
}

TEST(Validator, TheBitsDependNeitherOnTurnsNorOnTheNumberOfRanks) {
  const Validated at_once = validate(validation_options(4), {}, 4);
  EXPECT_TRUE(at_once.validation.findings.empty());
  EXPECT_EQ(at_once.validation.exit_code(), 0);
  EXPECT_EQ(at_once.validation.groups.size(), 1U);
  const Validated in_turn = validate(validation_options(4), {}, 1);
  EXPECT_EQ(in_turn.validation.turns, 4);
  const SessionResult session = run_session(validation_options(2), {}, {});
  ASSERT_TRUE(session.validation.has_value());
  for (const Validation* other : {&in_turn.validation, &*session.validation}) {
    for (const ValidatedRank& rank : other->ranks) {
      EXPECT_EQ(rank.gradients, at_once.validation.ranks[0].gradients);
      EXPECT_EQ(rank.weights, at_once.validation.ranks[0].weights);
    }
  }
  ASSERT_EQ(session.runs.size(), 1U);
  const RunRecord& run = session.runs[0];
  EXPECT_EQ(run.phase, Phase::kNone);
  EXPECT_EQ(run.measured_steps, kSteps);
  EXPECT_FALSE(run.images_per_second.has_value());
  EXPECT_EQ(run.ranks[1].gradient_checksum, at_once.validation.ranks[0].gradients);
}

TEST(Validator, OneRankHasNobodyToBeComparedWith) {
  Options options = validation_options(1);
  EXPECT_THROW((void)run_session(options, {}, {}), Error);
}

RankKind kind(const std::string& processor, const std::string& library, const std::string& gpu = {}) {
  return {gpu, "processor=" + processor + "\nonednn=" + library + "\n"};
}

TEST(RankKinds, OnlyRanksThatAreAlikeInAllButTheBoardAreEqual) {
  const std::vector<RankKind> kinds{kind("A", "1", "GPU-1"), kind("B", "1"), kind("A", "1", "GPU-2"), kind("A", "2")};
  const auto groups = groups_of(kinds);
  EXPECT_EQ(groups, (std::vector<std::vector<std::size_t>>{{0, 2}, {1}, {3}}));
  EXPECT_EQ(group_titles(kinds, groups),
            (std::vector<std::string>{"A", "B (processor is B, not A)", "A (onednn is 2, not 1)"}));
}

TEST(RankKinds, UnlikeRanksAreNamedWithTheirFirstDifference) {
  const std::vector<RankKind> kinds{kind("A", "1"), kind("B", "1"), kind("A", "1"), kind("A", "2"), kind("B", "1")};
  EXPECT_EQ(unlike_ranks(kinds, {"a", "b", "c", "d", "e"}),
            "the ranks are not alike, and all wait for the slowest. Compared with rank 0, rank 1 (host b) and 1 more: "
            "processor is B, not A; rank 3 (host d): onednn is 2, not 1");
  EXPECT_EQ(unlike_ranks({kinds.data(), 1}, {"a"}), "");
}

TEST(RankKinds, OfAGpuItIsTheModelAndNotTheBoard) {
  const auto heap = models::make_heap_arena();
  models::ReplayProfile profile;
  profile.gradients = {{"fc", 10, 0.001, 0.001}};
  const auto step = models::make_replay_step(profile, DataType::kF32, heap.allocate);
  const GpuDescription first{{"gpu.name", "H200"}, {"gpu.uuid", "GPU-1"}, {"gpu.engines", "ab"}};
  GpuDescription second = first;
  second["gpu.uuid"] = "GPU-2";
  EXPECT_EQ(kind_of_rank(*step, first).lines, kind_of_rank(*step, second).lines);
  EXPECT_EQ(kind_of_rank(*step, second).gpu, "GPU-2");
  second["gpu.engines"] = "cd";
  EXPECT_NE(kind_of_rank(*step, first).lines, kind_of_rank(*step, second).lines);
  EXPECT_EQ(kind_of_rank(*step, first).lines.rfind("gpu.name=H200\n", 0), 0U);
  EXPECT_EQ(kind_of_rank(*step, {}).lines.rfind("processor=", 0), 0U);
}

}  // namespace
}  // namespace hvd::bench::validator_test
