// Tests the lowering of graphs to programs. For every network, fusion level and engine oracle (some oracles serve
// everything, others only single convolutions), the program must cover each node once in a legal order. For small
// networks, the groups of the program also run in double. The results must be those of the graph.
#include "models/cudnn/lowering/lowering.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>

#include "engine/base/error.h"
#include "models/cudnn/plan/memory_layout.h"
#include "models/zoo/zoo.h"
#include "tests/cudnn/lowering/fusions.h"
#include "tests/cudnn/lowering/interpreter.h"
#include "tests/cudnn/lowering/networks.h"
#include "tests/cudnn/lowering/oracles.h"
#include "tests/cudnn/lowering/program_check.h"
#include "tests/models/testing.h"

namespace hvd::models::cudnn::testing::lowering_test {
namespace {

struct NamedOracle {
  std::string name;
  std::unique_ptr<EngineOracle> oracle;
};

std::vector<NamedOracle> oracles() {
  std::vector<NamedOracle> list;
  list.push_back({"all", std::make_unique<ServesAll>()});
  list.push_back({"convolutions", std::make_unique<ServesSingleConvolutions>()});
  list.push_back({"no backward sums", std::make_unique<ServesNoBackwardSums>()});
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    list.push_back({"random " + std::to_string(seed), std::make_unique<ServesAtRandom>(seed)});
  }
  return list;
}

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

Program lowered(const Graph& graph, const LoweringOptions& options, EngineOracle& oracle) {
  Program program = lower(graph, options, oracle);
  const std::vector<std::string> wrong = violations(graph, program);
  EXPECT_TRUE(wrong.empty()) << graph.model << ", level " << options.fusion.level << ":\n" << joined(wrong);
  return program;
}

Program lowered(const Graph& graph, int level, EngineOracle& oracle, DataType gradient = DataType::kF16) {
  return lowered(graph, {.gradient = gradient, .fusion = reading(ImageLayout::kPadded, level)}, oracle);
}

std::map<std::string, int> counts(const Program& program) {
  std::map<std::string, int> table;
  for (const Group& group : program.groups) {
    ++table[std::string(name(group.provider)) + ": " + operations_text(group)];
  }
  return table;
}

// ---- Coverage ----

TEST(Lowering, CoversTheNetworksAtAllLevelsWhateverIsServed) {
  for (const char* model : {"resnet50", "resnet101", "inception3", "vgg16"}) {
    for (const bool auxiliary : {false, true}) {
      if (auxiliary && std::string(model) != "inception3") continue;
      const Graph graph = differentiate(build_model({.model = model, .batch_size = 2, .auxiliary_head = auxiliary}));
      for (int level = 0; level <= 2; ++level) {
        for (const auto& [name, oracle] : oracles()) {
          SCOPED_TRACE(std::string(model) + ", " + name);
          for (const DataType gradient : {DataType::kF16, DataType::kF32}) {
            for (const ImageLayout images : {ImageLayout::kPadded, ImageLayout::kColumns}) {
              lowered(graph, {.gradient = gradient, .fusion = reading(images, level)}, *oracle);
            }
          }
        }
      }
    }
  }
}

TEST(Lowering, IsAFunctionOfTheGraphAndTheAnswers) {
  const Graph graph = differentiate(tiny_inception(2));
  const auto text = [&] {
    ServesAtRandom oracle(3);
    const Program program = lowered(graph, 2, oracle);
    std::string all;
    for (const Group& group : program.groups) all += signature(program, group) + "\n";
    return all;
  };
  EXPECT_EQ(text(), text());
}

// ---- The meaning of the levels, mostly on ResNet-50, with an oracle that serves everything ----

TEST(Lowering, LevelZeroRunsEveryOperationAlone) {
  const Graph graph = differentiate(tiny_resnet(2));
  ServesAll oracle;
  const Program program = lowered(graph, 0, oracle);
  for (const Group& group : program.groups) {
    if (group.provider == Provider::kOwn && group.operations[0].type == OpType::kCopy) continue;
    EXPECT_EQ(group.operations.size(), 1U) << operations_text(group);
    EXPECT_EQ(group.level, 0);
  }
  EXPECT_TRUE(program.elided.empty());
}

TEST(Lowering, LevelOneFusesAroundWhatIsStored) {
  const Graph graph = differentiate(build_model({.model = "resnet50", .batch_size = 2}));
  ServesAll oracle;
  const auto table = counts(lowered(graph, 1, oracle));
  // There are 53 batch norms. 33 are followed by a relu (one in the stem and two in each of 16 blocks). 16 are followed
  // by a sum and a relu at the end of a block. 4 run alone, because the other operand of their sum is computed later.
  EXPECT_EQ(table.at("own: statistics+norm_finalize"), 53);
  EXPECT_EQ(table.at("own: norm_apply+relu"), 33);
  EXPECT_EQ(table.at("own: norm_apply+add+relu"), 16);
  EXPECT_EQ(table.at("own: norm_apply"), 4);
  EXPECT_EQ(table.at("cudnn: conv"), 53);
  EXPECT_EQ(table.at("cudnn: wgrad"), 53);
  // There are 52 data gradients. 32 are inside blocks. There the backward pass of the batch norm includes the
  // rectifier's backward. 16 are at the inputs of blocks and add the diff of the block's other branch (15 inputs come
  // from a relu, one from the max pool). 4 run alone: each is the first of two data gradients for the input of a block
  // with a convolutional shortcut.
  EXPECT_EQ(table.at("cudnn: dgrad"), 36);
  EXPECT_EQ(table.at("cudnn: dgrad+add+drelu"), 15);
  EXPECT_EQ(table.at("cudnn: dgrad+add"), 1);
  EXPECT_EQ(table.at("own: norm_apply+drelu+dnorm_weights"), 32);
  EXPECT_EQ(table.at("own: norm_apply+drelu+dnorm_apply"), 32);
  EXPECT_EQ(table.at("own: dnorm_weights"), 21);
  EXPECT_EQ(table.at("own: dnorm_apply"), 21);
  EXPECT_EQ(table.at("own: drelu+dmax_pool"), 1);
  EXPECT_EQ(table.at("own: dglobal_avg_pool+drelu"), 1);
  EXPECT_EQ(table.at("cublaslt: linear+bias"), 1);
  EXPECT_EQ(table.at("cublaslt: linear_wgrad+dbias"), 1);
}

TEST(Lowering, LevelTwoSumsWhereConvolutionsWrite) {
  const Graph graph = differentiate(build_model({.model = "resnet50", .batch_size = 2}));
  ServesAll oracle;
  const auto table = counts(lowered(graph, 2, oracle));
  EXPECT_EQ(table.at("cudnn: conv+statistics"), 53);
  EXPECT_EQ(table.at("own: norm_finalize"), 53);
  EXPECT_EQ(table.at("cudnn: wgrad"), 53);
  EXPECT_EQ(table.at("cudnn: dgrad+norm_apply+drelu+dnorm_weights"), 32);
  EXPECT_EQ(table.at("own: dnorm_weights"), 21);  // in the stem, at each block's end, in four shortcuts
  EXPECT_EQ(table.at("own: dnorm_apply"), 53);
  EXPECT_EQ(table.at("own: norm_apply+relu"), 33);
  EXPECT_EQ(table.at("own: norm_apply+add+relu"), 12);
  EXPECT_EQ(table.at("own: norm_apply+norm_apply+add+relu"), 4);
}

TEST(Lowering, FallsBackAtTheNodeAloneAndSaysWhy) {
  // Refuses statistics only for block1.conv2. A kernel of this project must then sum its output, and nothing else
  // changes.
  class Picky : public ServesAll {
   public:
    std::string refusal(const Program& program, const Group& group) override {
      const bool asked = has(group, OpType::kConv) && has(group, OpType::kStatistics);
      return asked && program.value(group.writes[0]).name == "block1.conv2:y" ? "not this one" : "";
    }
  };
  const Graph graph = differentiate(tiny_resnet(2));
  ServesAll all;
  Picky picky;
  const Program best = lowered(graph, 2, all);
  const Program program = lowered(graph, 2, picky);
  EXPECT_TRUE(best.fallbacks.empty());
  ASSERT_EQ(program.fallbacks.size(), 1U);
  EXPECT_EQ(graph.node(program.fallbacks[0].node).name, "block1.conv2");
  EXPECT_EQ(program.fallbacks[0].wanted, "conv+statistics");
  EXPECT_EQ(program.fallbacks[0].why, "not this one");
  EXPECT_EQ(program.fallbacks[0].level, 2);
  auto expected = counts(best);
  --expected["cudnn: conv+statistics"];
  ++expected["cudnn: conv"];
  --expected["own: norm_finalize"];
  ++expected["own: statistics+norm_finalize"];
  EXPECT_EQ(counts(program), expected);
}

TEST(Lowering, RefusesAConvolutionThatNobodyServes) {
  class Nothing : public EngineOracle {
   public:
    std::string refusal(const Program& /*program*/, const Group& /*group*/) override { return "no such device"; }
  };
  Nothing oracle;
  const Graph graph = differentiate(tiny_resnet(2));
  models::testing::expect_error(Errc::kUnsupported, {"tiny_resnet", "stem", "fp16", "no such device"},
                                [&] { lower(graph, {.fusion = reading(ImageLayout::kPadded)}, oracle); });
  models::testing::expect_error(Errc::kInvalidArgument, {"differentiated"}, [&] { lower(tiny_resnet(2), {}, oracle); });
  models::testing::expect_error(Errc::kInvalidArgument, {"level 3"},
                                [&] { lower(graph, {.fusion = reading(ImageLayout::kPadded, 3)}, oracle); });
}

TEST(Lowering, WritesBranchesIntoTheirConcatenation) {
  const Graph graph = differentiate(build_model({.model = "inception3", .batch_size = 2}));
  ServesAll oracle;
  // In fp32 neither gradients nor padded weights are copied. Any copy would therefore belong to a concatenation.
  const Program program =
      lowered(graph, {.compute = ComputeType::kFp32, .gradient = DataType::kF32, .fusion = {.level = 1}}, oracle);
  std::size_t concats = 0;
  for (const Node& node : graph.nodes) concats += node.kind == OpKind::kConcat ? 1U : 0U;
  EXPECT_EQ(program.elided.size(), 2 * concats);  // each concatenation is elided forward and backward
  EXPECT_EQ(counts(program)["own: copy"], 0);
}

// ---- Images with channels added ----

/// Returns the shapes of all inputs and outputs of operations of `type` whose first input is `side` pixels high.
std::string shapes_of(const Program& program, OpType type, std::int64_t side) {
  std::string text;
  for (const Group& group : program.groups) {
    for (const Operation& operation : group.operations) {
      if (operation.type != type || program.value(operation.inputs[0]).shape[1] != side) continue;
      for (const std::vector<ValueId>& ids : {operation.inputs, operation.outputs}) {
        for (const ValueId id : ids) text += (text.empty() ? "" : " ") + program.value(id).shape.text();
      }
    }
  }
  return text;
}

TEST(LoweringPadding, TheFirstConvolutionReadsAsManyChannelsAsTensorCoresWant) {
  const Graph graph = differentiate(build_model({.model = "resnet50", .batch_size = 2}));
  ServesAll oracle;
  const auto channels_of = [&](const LoweringOptions& options, const std::string& channels) {
    const Program program = lowered(graph, options, oracle);
    EXPECT_EQ(shapes_of(program, OpType::kConv, 224),
              "2x224x224x" + channels + " 64x7x7x" + channels + " 2x112x112x64");
    EXPECT_EQ(shapes_of(program, OpType::kConvBackwardWeights, 224),
              "2x224x224x" + channels + " 2x112x112x64 64x7x7x" + channels);
    // The images that the caller writes, the parameters and the gradients keep the shapes of the network.
    EXPECT_EQ(program.value(images_of(graph, program)).shape, graph.tensor(graph.images).shape);
    for (const Value& value : program.values) {
      if (value.storage != Storage::kParameter && value.storage != Storage::kGradient) continue;
      EXPECT_EQ(value.shape, graph.tensor(value.tensor).shape);
      EXPECT_EQ(value.parent, kNoValue);
    }
    return counts(program)["own: copy"];
  };
  for (int level = 0; level <= 2; ++level) {
    const auto padded = [level](ComputeType compute) {
      return LoweringOptions{
          .compute = compute, .gradient = storage(compute), .fusion = reading(ImageLayout::kPadded, level)};
    };
    // The first weight and its gradient are copied. At level 2, four gradients of batch norms are copied too.
    const int copies = level == 2 ? 6 : 2;
    EXPECT_EQ(channels_of(padded(ComputeType::kFp16), "8"), copies);
    EXPECT_EQ(channels_of(padded(ComputeType::kBf16), "8"), copies);
    EXPECT_EQ(channels_of(padded(ComputeType::kTf32), "4"), 2);
    EXPECT_EQ(channels_of(padded(ComputeType::kFp32), "3"), 0);
  }
}

TEST(LoweringPadding, ImagesThatSomethingElseReadsStayAsTheyAre) {
  GraphBuilder b("pooled_images", 2, 8, 5);
  const TensorId pooled = b.max_pool("pool", b.images(), square(2, 2, 0));
  const TensorId read = b.conv("conv", b.images(), 8, square(3, 2, 1), true);
  const TensorId all = b.concat("concat", std::array{read, pooled});
  b.softmax_cross_entropy("loss", b.fully_connected("fc", b.global_avg_pool("avgpool", all), 5));
  const Graph graph = differentiate(std::move(b).build());
  ServesAll oracle;
  const Program program = lowered(graph, {.fusion = reading(ImageLayout::kPadded)}, oracle);
  for (const Value& value : program.values) EXPECT_EQ(value.padding, 0) << value.name;
}

TEST(Lowering, GradientsBecomeReadyInOrderAndEarly) {
  const Graph graph = differentiate(build_model({.model = "resnet50", .batch_size = 2}));
  ServesAll oracle;
  for (const DataType gradient : {DataType::kF16, DataType::kF32}) {
    const Program program = lowered(graph, 2, oracle, gradient);
    const std::vector<std::size_t> ready = gradients_ready(graph, program);
    ASSERT_EQ(ready.size(), program.groups.size());
    EXPECT_TRUE(std::is_sorted(ready.begin(), ready.end()));
    EXPECT_EQ(ready.back(), graph.parameters.size());
    // Communication overlaps only if gradients are ready early. After 60 % of the groups that follow the first ready
    // gradient, half of all gradients must be ready.
    const auto first = static_cast<std::size_t>(
        std::find_if(ready.begin(), ready.end(), [](std::size_t n) { return n > 0; }) - ready.begin());
    EXPECT_GT(ready.at(first + (ready.size() - first) * 3 / 5), graph.parameters.size() / 2);
  }
}

TEST(Lowering, CopiesVectorsIntoA16BitArenaManyAtATime) {
  const Graph graph = differentiate(build_model({.model = "resnet50", .batch_size = 2}));
  ServesAll oracle;
  std::size_t launches = 0, copies = 0;
  const Program program = lowered(graph, 2, oracle, DataType::kF16);
  for (const Group& group : program.groups) {
    if (group.operations[0].type != OpType::kCopy) continue;
    if (program.value(group.writes[0]).storage == Storage::kPaddedWeight) continue;
    ++launches;
    copies += group.operations.size();
  }
  EXPECT_EQ(copies, 65U);   // gradients of gamma and beta of 32 batch norms that cuDNN sums, and of the first weight
  EXPECT_EQ(launches, 5U);  // each launch makes up to 16 copies
}

// ---- Arithmetic ----

/// Runs the groups in double. Compares every gradient, the losses and the running statistics with the reference. Erases
/// a value after its last reader has run, because then the memory layout reuses the value's memory.
void compare_with_reference(const Graph& forward, const LoweringOptions& options, EngineOracle& oracle) {
  constexpr std::uint64_t kSeed = 5;
  models::testing::Rank rank(forward, {.gradient = DataType::kF64, .seed = kSeed});
  const Graph graph = differentiate(forward);
  const Program program = lowered(graph, options, oracle);
  Interpreter interpreter(graph, program);
  const std::vector<double> images(rank.images.begin(), rank.images.end());
  interpreter.set(graph.images, images);
  const auto state = rank.step->state_to_broadcast();
  const auto doubles = [](std::span<std::byte> bytes) {
    return std::vector<double>(reinterpret_cast<double*>(bytes.data()),
                               reinterpret_cast<double*>(bytes.data()) + bytes.size() / sizeof(double));
  };
  std::vector<TensorId> states;
  for (std::size_t id = 0; id < graph.tensors.size(); ++id) {
    if (graph.tensors[id].role == TensorRole::kState) states.push_back(static_cast<TensorId>(id));
  }
  for (std::size_t i = 0; i < states.size(); ++i) interpreter.set(states[i], doubles(state[i + 1]));
  const auto slots = rank.step->slots();
  for (std::size_t p = 0; p < slots.size(); ++p) {
    interpreter.set(graph.parameters[p].value, rank.parameters().subspan(slots[p].offset, slots[p].count));
  }
  const double expected_loss = rank.forward_backward();
  std::vector<int> last = last_readers(program);
  for (const NodeId id : graph.losses) {  // keeps the losses: no group reads them, but this function does
    for (std::size_t value = 0; value < last.size(); ++value) {
      if (program.values[value].tensor == graph.node(id).outputs[0]) last[value] = -1;
    }
  }
  interpreter.run(rank.labels, kSeed, last);

  double loss = 0;
  for (const NodeId id : graph.losses) {
    loss += std::get<LossAttr>(graph.node(id).attr).weight * interpreter.get(graph.node(id).outputs[0]).at(0);
  }
  // Both results are computed in double. They differ by about 1e-16 of the largest term per layer, because the program
  // adds in another order than the reference, and computes variances from sums of squares. Batch norms over few pixels
  // magnify this difference. Wrong programs cause far larger errors.
  constexpr double kTolerance = 1e-8;
  EXPECT_NEAR(loss, expected_loss, kTolerance * std::abs(expected_loss));
  const auto compare = [&](const std::string& what, std::span<const double> got, std::span<const double> expected) {
    ASSERT_EQ(got.size(), expected.size()) << what;
    double error = 0, norm = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      error += (got[i] - expected[i]) * (got[i] - expected[i]);
      norm += expected[i] * expected[i];
    }
    EXPECT_TRUE(std::sqrt(error) <= kTolerance * std::sqrt(norm) + 1e-14)
        << forward.model << ", level " << options.fusion.level << ", " << what << ": error " << std::sqrt(error)
        << " of " << std::sqrt(norm);
  };
  for (std::size_t p = 0; p < slots.size(); ++p) {
    compare("gradient of " + slots[p].name, interpreter.get(graph.parameters[p].gradient),
            rank.gradients().subspan(slots[p].offset, slots[p].count));
  }
  for (std::size_t i = 0; i < states.size(); ++i) {
    compare(graph.tensor(states[i]).name, interpreter.get(states[i]), doubles(state[i + 1]));
  }
}

TEST(LoweringArithmetic, SmallNetworksAtAllLevelsWhateverIsServed) {
  for (const Graph& forward :
       {models::testing::every_operation(4), models::testing::tiny_vgg(3), tiny_resnet(4), tiny_inception(3)}) {
    for (int level = 0; level <= 2; ++level) {
      for (const auto& [name, oracle] : oracles()) {
        SCOPED_TRACE(name);
        for (const ImageLayout images : {ImageLayout::kPadded, ImageLayout::kColumns}) {
          compare_with_reference(forward, {.fusion = reading(images, level)}, *oracle);
        }
        compare_with_reference(
            forward,
            {.compute = ComputeType::kTf32, .gradient = DataType::kF32, .fusion = reading(ImageLayout::kPadded, level)},
            *oracle);
      }
    }
  }
}

// ImageLayout::kColumns makes a matrix of the images' windows if a single convolution reads the images and its output
// is not a slice (a matrix product cannot write a slice). In all other cases the channels of the images are padded.
TEST(LoweringArithmetic, ImagesThatAreNoColumnsArePadded) {
  const auto network = [&](bool twice) {
    GraphBuilder b(twice ? "two_readers" : "joined", 3, 8, 5);
    const TensorId first = b.relu("relu", b.conv("conv", b.images(), 6, square(3, 1, 1), true));
    const TensorId other =
        twice ? b.conv("conv2", b.images(), 6, square(1, 1, 0), true) : b.max_pool("max", first, square(3, 1, 1));
    const TensorId joined = twice ? b.add("sum", first, other) : b.concat("concat", std::array{first, other});
    b.softmax_cross_entropy("loss", b.fully_connected("fc", joined, 5));
    return std::move(b).build();
  };
  ServesAll all;
  const Graph vgg = differentiate(models::testing::tiny_vgg(2));
  EXPECT_EQ(counts(lowered(vgg, {.fusion = reading(ImageLayout::kColumns)}, all))["own: columns"], 1);
  for (const bool twice : {false, true}) {
    const Graph forward = network(twice), graph = differentiate(forward);
    for (int level = 1; level <= 2; ++level) {
      ServesAll oracle;
      const Program program = lowered(graph, {.fusion = reading(ImageLayout::kColumns, level)}, oracle);
      EXPECT_EQ(counts(program)["own: columns"], 0) << forward.model;
      const auto padded = std::count_if(program.values.begin(), program.values.end(), [](const Value& value) {
        return value.storage == Storage::kImages && value.padding > 0;
      });
      EXPECT_EQ(padded, 1) << forward.model;
      compare_with_reference(forward, {.fusion = reading(ImageLayout::kColumns, level)}, oracle);
    }
  }
}

TEST(LoweringArithmetic, ResNet50AtLevelTwo) {
  ServesAll oracle;
  compare_with_reference(build_model({.model = "resnet50", .batch_size = 4, .image_size = 32, .classes = 10}),
                         {.fusion = reading(ImageLayout::kPadded)}, oracle);
}

}  // namespace
}  // namespace hvd::models::cudnn::testing::lowering_test
