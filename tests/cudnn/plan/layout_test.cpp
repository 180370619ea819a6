// Tests memory layouts, files of winners, and the counts of FLOPs and bytes of a group.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "engine/base/error.h"
#include "models/cudnn/lowering/program.h"
#include "models/cudnn/plan/memory_layout.h"
#include "models/cudnn/plan/winners.h"
#include "models/graph/autodiff.h"
#include "models/zoo/zoo.h"
#include "tests/cudnn/lowering/fusions.h"
#include "tests/cudnn/lowering/networks.h"
#include "tests/cudnn/lowering/oracles.h"
#include "tests/models/testing.h"

namespace hvd::models::cudnn::testing::layout_test {
namespace {

Program lowered(const Graph& graph, int level) {
  ServesAll oracle;
  return lower(graph, {.fusion = reading(ImageLayout::kPadded, level)}, oracle);
}

// ---- Memory ----

TEST(MemoryLayout, ValuesThatLiveTogetherDoNotOverlap) {
  const Graph graph = differentiate(build_model({.model = "inception3", .batch_size = 4}));
  for (int level = 0; level <= 2; ++level) {
    const Program program = lowered(graph, level);
    const MemoryLayout layout = lay_out(graph, program, ComputeType::kFp16, DataType::kF16);
    struct Range {
      std::size_t begin = 0, end = 0;
      int first = -1, last = -1;
    };
    std::vector<Range> ranges(program.values.size());
    for (std::size_t i = 0; i < program.groups.size(); ++i) {
      std::vector<ValueId> touched = reads(program.groups[i]);
      touched.insert(touched.end(), program.groups[i].writes.begin(), program.groups[i].writes.end());
      for (const ValueId id : touched) {
        if (program.value(id).storage != Storage::kScratch) continue;
        const auto root = static_cast<std::size_t>(placement(program, id).root);
        Range& range = ranges[root];
        if (range.first < 0) range.first = static_cast<int>(i);
        range.last = static_cast<int>(i);
        ASSERT_NE(layout.offsets[root], kNoOffset) << program.values[root].name;
        EXPECT_EQ(layout.offsets[root] % kScratchAlignBytes, 0U);
        range.begin = layout.offsets[root];
        range.end = range.begin +
                    static_cast<std::size_t>(program.values[root].shape.count()) * size_of(program.values[root].type);
        EXPECT_LE(range.end, layout.scratch);
      }
    }
    for (std::size_t a = 0; a < ranges.size(); ++a) {
      for (std::size_t b = 0; b < a; ++b) {
        const bool together = ranges[a].first >= 0 && ranges[b].first >= 0 && ranges[a].first <= ranges[b].last &&
                              ranges[b].first <= ranges[a].last;
        const bool apart = ranges[a].end <= ranges[b].begin || ranges[b].end <= ranges[a].begin;
        ASSERT_TRUE(!together || apart) << program.values[a].name << " and " << program.values[b].name;
      }
    }
    EXPECT_GE(layout.scratch, layout.scratch_lower_bound);
    EXPECT_LE(layout.scratch, layout.scratch_lower_bound + layout.scratch_lower_bound / 20);
    EXPECT_LT(layout.scratch, layout.scratch_without_reuse / 2);
  }
}

TEST(MemoryLayout, SlicesLieInsideWhatTheyAreSlicesOf) {
  const Graph graph = differentiate(tiny_inception(2));
  const Program program = lowered(graph, 1);
  const MemoryLayout layout = lay_out(graph, program, ComputeType::kFp16, DataType::kF16);
  std::size_t slices = 0;
  for (std::size_t id = 0; id < program.values.size(); ++id) {
    const Value& value = program.values[id];
    if (value.parent == kNoValue) continue;
    ++slices;
    EXPECT_EQ(layout.offsets[id],
              layout.offsets[static_cast<std::size_t>(value.parent)] + static_cast<std::size_t>(value.channel) * 2);
  }
  // 20 slices belong to the branches: two concatenations of five branches, forward and backward. Three more are the
  // images, the first weight and its gradient, each without the added channels.
  EXPECT_EQ(slices, 23U);
}

TEST(MemoryLayout, ArenasHaveEqualSlotsInGradientOrder) {
  const Graph graph = differentiate(tiny_resnet(2));
  const Program program = lowered(graph, 2);
  const MemoryLayout fp16 = lay_out(graph, program, ComputeType::kFp16, DataType::kF16);
  ASSERT_EQ(fp16.slots.size(), graph.parameters.size());
  std::size_t offset = 0;
  for (std::size_t p = 0; p < fp16.slots.size(); ++p) {
    EXPECT_EQ(fp16.slots[p].name, graph.parameters[p].name);
    EXPECT_EQ(fp16.slots[p].offset, offset);
    EXPECT_EQ(fp16.slots[p].count % kSlotElements, 0U);
    EXPECT_GE(static_cast<std::int64_t>(fp16.slots[p].count), fp16.slots[p].shape.count());
    offset += fp16.slots[p].count;
  }
  EXPECT_EQ(fp16.parameter_elements, offset);
  EXPECT_EQ(fp16.weights, 2 * offset);
  EXPECT_EQ(fp16.master, 4 * offset);
  EXPECT_EQ(fp16.gradients, 2 * offset);
  EXPECT_EQ(fp16.momentum, 4 * offset);
  const MemoryLayout tf32 = lay_out(graph, program, ComputeType::kTf32, DataType::kF32);
  EXPECT_EQ(tf32.weights, 4 * offset);
  EXPECT_EQ(tf32.master, 0U);  // no master weights, because the weights are fp32 already
}

TEST(MemoryLayout, ChannelsAddedToImagesAreInNoArenaOfTheNetworks) {
  const Graph graph = differentiate(tiny_resnet(2));
  const auto laid_out = [&](ImageLayout images) {
    ServesAll oracle;
    return lay_out(graph, lower(graph, {.fusion = reading(images)}, oracle), ComputeType::kFp16, DataType::kF16);
  };
  const MemoryLayout columns = laid_out(ImageLayout::kColumns), padded = laid_out(ImageLayout::kPadded);
  EXPECT_EQ(padded.weights, columns.weights);
  EXPECT_EQ(padded.master, columns.master);
  EXPECT_EQ(padded.gradients, columns.gradients);
  EXPECT_EQ(padded.momentum, columns.momentum);
  EXPECT_EQ(padded.state, columns.state);
  for (std::size_t p = 0; p < columns.slots.size(); ++p) {
    EXPECT_EQ(padded.slots[p].offset, columns.slots[p].offset);
    EXPECT_EQ(padded.slots[p].shape, columns.slots[p].shape);
    EXPECT_EQ(padded.slots[p].shape, graph.tensor(graph.parameters[p].value).shape);
  }
  constexpr std::size_t kPixels = 2 * 16 * 16;
  EXPECT_EQ(columns.images, 2 * 3 * kPixels);
  EXPECT_EQ(padded.images, 2 * 8 * kPixels);
  EXPECT_EQ(padded.image_elements, 3 * kPixels);
  EXPECT_EQ(columns.padded_weights, 2 * kScratchAlignBytes);  // 8 filters x 32 taps (27 and padding) x 2 bytes = 512
  EXPECT_EQ(padded.padded_weights, 5 * kScratchAlignBytes);   // 8 filters x 3 x 3 x 8 x 2 bytes = 1152, aligned
}

TEST(MemoryLayout, FusedStepsNeedLessMemory) {
  const Graph graph = differentiate(build_model({.model = "resnet101", .batch_size = 8}));
  const auto scratch = [&](int level) {
    return lay_out(graph, lowered(graph, level), ComputeType::kFp16, DataType::kF16).scratch;
  };
  EXPECT_LE(scratch(2), scratch(1));  // may be equal, because both levels store the outputs of batch norms
  EXPECT_LT(scratch(1), scratch(0));
}

// ---- Winners ----

Plan small_plan() {
  Plan plan;
  plan.cudnn = "9.19.0";
  plan.device = "NVIDIA H200";
  plan.program.model = "resnet101";
  plan.engines.push_back({.signature = "one",
                          .choices = {{.engine = 62, .knobs = {{.type = 2, .value = 5}, {.type = 13, .value = -1}}},
                                      {.engine = 7, .workspace_bytes = 4096}}});
  plan.engines.push_back({.signature = "two", .choices = {{.engine = 1, .compiled_at_run_time = true}}});
  return plan;
}

Winners winners_of(const Winner& winner) { return {.list = {winner}, .fusion = {}, .why_not = {}}; }

TEST(Winners, SurviveTheirFile) {
  Plan plan = small_plan();
  const std::vector<Winner> winners{
      {.signature = signature_hash("one"), .choice = {.engine = 7, .workspace_bytes = 4096}, .microseconds = 41.5},
      {.signature = signature_hash("two"), .choice = {.engine = 1, .workspace_bytes = 65536}, .microseconds = 7},
      {.signature = signature_hash("three"), .choice = {.engine = 3}, .microseconds = 1}};
  const std::string path = ::testing::TempDir() + winners_file_name(plan);
  EXPECT_EQ(winners_file_name(plan).find(' '), std::string::npos);
  save_winners(path, plan, {.list = winners, .fusion = text(FusionOptions{.level = 1}), .why_not = {}});
  const Winners read = load_winners(path, plan);
  EXPECT_EQ(read.why_not, "");
  EXPECT_EQ(read.fusion, "level 1, prologues none, own norms rectifying, images as columns");
  ASSERT_EQ(read.list.size(), 3U);
  EXPECT_EQ(read.list[0].choice.engine, 7);
  EXPECT_EQ(read.list[0].microseconds, 41.5);
  EXPECT_EQ(choose_winners(plan, read.list), 0U);
  EXPECT_EQ(plan.engines[0].chosen, 1U);
  EXPECT_EQ(plan.engines[1].chosen, 0U);
  // The workspace of an engine compiled at run time is not known before a run. It therefore comes from the file of
  // winners.
  EXPECT_EQ(plan.workspace_bytes, 65536U);
  std::filesystem::remove(path);
}

TEST(Winners, WithKnobsAreFoundAgain) {
  Plan plan = small_plan();
  plan.engines[0].chosen = 1;
  const Winner winner{.signature = signature_hash("one"), .choice = plan.engines[0].choices[0], .microseconds = 3};
  EXPECT_EQ(winner.choice.text(), "62[2=5,13=-1]");
  const Winners read = parse_winners(winners_text(plan, winners_of(winner)), plan);
  ASSERT_EQ(read.list.size(), 1U);
  EXPECT_EQ(read.list[0].choice.knobs, winner.choice.knobs);
  EXPECT_EQ(choose_winners(plan, read.list), 1U);  // one engine has no winner: that of signature "two"
  EXPECT_EQ(plan.engines[0].chosen, 0U);
}

TEST(Winners, OfAnotherVersionOrGpuOrDamagedAreNotUsed) {
  const Plan plan = small_plan();
  const Winner winner{.signature = signature_hash("one"), .choice = plan.engines[0].choices[0], .microseconds = 3};
  const std::string text = winners_text(plan, winners_of(winner));
  Plan other = plan;
  other.cudnn = "9.20.0";
  EXPECT_NE(parse_winners(text, other).why_not.find("9.19.0"), std::string::npos);
  other = plan;
  other.device = "NVIDIA A100";
  EXPECT_NE(parse_winners(text, other).why_not.find("H200"), std::string::npos);
  for (const char* damage :
       {"winner 0123 62[2=5 workspace 1 microseconds 1\n", "winner\n",
        "winner 0123 62[2=5] workspace x microseconds 1\n", "winner 0123 62[2=5] workspace 1 microseconds 1 more\n"}) {
    const Winners read = parse_winners(text + damage, plan);
    EXPECT_TRUE(read.list.empty());
    EXPECT_EQ(read.why_not, "line 6 is damaged") << damage;
  }
  EXPECT_FALSE(parse_winners("", plan).why_not.empty());
  EXPECT_FALSE(load_winners("/nowhere/at/all", plan).why_not.empty());
  models::testing::expect_error(Errc::kIo, {"/proc/nowhere"}, [&] { save_winners("/proc/nowhere/at/all", plan, {}); });
}

TEST(Fusions, WorthTimingAreOfTheSameLevelAndBelow) {
  EXPECT_EQ(worth_timing({.level = 0}).size(), 1U);
  EXPECT_EQ(worth_timing({.level = 1}).size(), 1U);
  const FusionOptions first{.level = 2, .images = ImageLayout::kPadded};
  const std::vector<FusionOptions> list = worth_timing(first);
  ASSERT_EQ(list.size(), 2U);
  EXPECT_EQ(list[0], first);
  EXPECT_EQ(text(list[1]), "level 1, prologues none, own norms rectifying, images padded");
}

TEST(Winners, OfOtherProgramsAreBorrowedForEqualGroups) {
  Plan plan = small_plan();
  const Winner first{.signature = signature_hash("one"), .choice = plan.engines[0].choices[1], .microseconds = 3};
  Winner slower = first, three = first, product;
  slower.choice = plan.engines[0].choices[0];
  three.signature = signature_hash("three");
  product.signature = 7;
  product.algorithm = "lt:0";
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "hvd_borrowed";
  std::filesystem::remove_all(folder);
  EXPECT_TRUE(borrow_winners(folder.string(), plan, {}).empty());
  std::filesystem::create_directories(folder);
  Plan other_gpu = plan;
  other_gpu.device = "NVIDIA A100";
  save_winners((folder / "a.winners").string(), other_gpu, winners_of(slower));
  save_winners((folder / "b.winners").string(), plan, {.list = {first, three, product}, .why_not = {}});
  save_winners((folder / "c.winners").string(), plan, winners_of(slower));
  save_winners((folder / "a.txt").string(), plan, winners_of(slower));
  const std::vector<Winner> borrowed = borrow_winners(folder.string(), plan, {});
  ASSERT_EQ(borrowed.size(), 3U) << "the winner of the first file for each signature";
  EXPECT_EQ(borrowed[0].choice.text(), first.choice.text());
  EXPECT_EQ(borrowed[2].algorithm, "lt:0");
  EXPECT_EQ(borrow_winners(folder.string(), plan, {slower}).size(), 2U) << "what is there stays";
  EXPECT_EQ(choose_winners(plan, borrowed), 1U);
  const std::vector<Winner> used = in_use(plan, {first, slower, three, product});
  ASSERT_EQ(used.size(), 2U);
  EXPECT_EQ(used[0].choice.text(), first.choice.text());
  std::filesystem::remove_all(folder);
}

// ---- Bounds ----

TEST(GroupCost, CountsWhatIsComputedAndWhatCrossesMemory) {
  const Graph graph = differentiate(models::testing::tiny_vgg(2));
  const Program program = lowered(graph, 1);
  // This is the first convolution with its bias and rectifier, in fp16. It makes {2, 8, 8, 6} of {2, 8, 8, 3} with a 3
  // x 3 kernel. The cost counts the network's three channels, not the five added channels of zeroes.
  const Group& conv = program.groups.at(1);
  ASSERT_EQ(operations_text(conv), "conv+bias+relu");
  constexpr double kMade = 2 * 8 * 8 * 6;
  EXPECT_DOUBLE_EQ(group_cost(graph, program, conv).flops, 2 * kMade * 27 + kMade + kMade);
  EXPECT_DOUBLE_EQ(group_cost(graph, program, conv).bytes, 2 * (2 * 8 * 8 * 3 + 6 * 27 + 6 + kMade));
  // The whole step costs at least as much as its products, and at most 10 % more.
  double products = 0, step = 0;
  for (const Node& node : graph.nodes) {
    const bool counts = node.kind == OpKind::kConv || node.kind == OpKind::kFullyConnected ||
                        node.kind == OpKind::kConvBackwardWeights || node.kind == OpKind::kConvBackwardData ||
                        node.kind == OpKind::kFullyConnectedBackwardWeights ||
                        node.kind == OpKind::kFullyConnectedBackwardData;
    if (counts) products += cost(graph, node, 1).flops;
  }
  for (const Group& group : program.groups) step += group_cost(graph, program, group).flops;
  EXPECT_GE(step, products);
  EXPECT_LE(step, 1.1 * products);
}

TEST(Winners, AreNamedByWhatThePlanRuns) {
  Plan plan = small_plan();
  plan.program = lowered(differentiate(tiny_resnet(2)), 2);
  plan.engine_of.assign(plan.program.groups.size(), -1);
  Plan other = plan;
  EXPECT_EQ(program_hash(plan), program_hash(other));
  other.program = lowered(differentiate(tiny_resnet(4)), 2);
  other.engine_of.assign(other.program.groups.size(), -1);
  EXPECT_NE(program_hash(plan), program_hash(other));
  other = plan;
  other.options.compute = ComputeType::kBf16;
  EXPECT_NE(program_hash(plan), program_hash(other));
}

}  // namespace
}  // namespace hvd::models::cudnn::testing::layout_test
