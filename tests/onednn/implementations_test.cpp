// Compiles every network for many image and batch sizes, and asks which of oneDNN's implementations each operation got.
// Nothing runs. CMake starts this program once for each instruction set that ONEDNN_MAX_CPU_ISA can name, because
// oneDNN reads the variable once per process.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <map>
#include <set>
#include <string>

#include "models/graph/autodiff.h"
#include "models/onednn/compat.h"
#include "models/onednn/compiler.h"
#include "models/train_step.h"
#include "models/zoo/zoo.h"

namespace hvd::models::implementations_test {
namespace {

struct Case {
  std::string model;
  DataType compute;
};

class Implementations : public ::testing::TestWithParam<Case> {};

TEST_P(Implementations, NoneIsReferenceCode) {
  const auto& [model, compute] = GetParam();
  if (const std::string reason = onednn_unsupported_reason(compute); !reason.empty()) GTEST_SKIP() << reason;
  const ModelInfo& info = find_model(model);
  std::set<std::int64_t> sizes{info.default_image_size};
  for (const std::int64_t size : {32, 64, 96}) sizes.insert(std::max(size, info.minimum_image_size));
  std::size_t operations = 0;
  std::map<std::string, std::string> slow;  // where an implementation was first met
  const auto examine = [&](const onednn::BoundOperation& operation, const std::string& where) {
    ++operations;
    if (!onednn::is_reference(operation.implementation)) return;
    slow.try_emplace(operation.kind + " " + operation.implementation, operation.node + where);
  };
  for (const std::int64_t size : sizes) {
    for (const std::int64_t batch : {1, 2, 8}) {
      for (const bool winograd : {true, false}) {
        if (compute != DataType::kF32 && winograd) continue;
        const Graph graph = differentiate(build_model({model, batch, size, 1000, false}));
        onednn::PrimitiveProgram program(dnnl::engine(dnnl::engine::kind::cpu, 0));
        onednn::Parameters parameters(graph, compute, program);
        onednn::Compiler compiler(graph, {.compute = compute, .winograd = winograd}, program, parameters);
        compiler.compile();
        const std::string where = " at " + std::to_string(size) + " pixels, batch " + std::to_string(batch);
        for (const onednn::BoundOperation& operation : program.operations()) examine(operation, where);
        for (const onednn::BoundOperation& operation : program.refresh_operations()) examine(operation, where);
      }
    }
  }
  std::cout << operations << " operations, " << onednn::library_version() << " " << onednn::library_isa() << "\n";
  EXPECT_GT(operations, 500U);
  for (const auto& [implementation, where] : slow) ADD_FAILURE() << implementation << ", first in " << where;
}

INSTANTIATE_TEST_SUITE_P(Networks, Implementations,
                         ::testing::Values(Case{"vgg16", DataType::kF32}, Case{"vgg16", DataType::kBF16},
                                           Case{"resnet50", DataType::kF32}, Case{"resnet50", DataType::kBF16},
                                           Case{"resnet101", DataType::kF32}, Case{"resnet101", DataType::kBF16},
                                           Case{"inception3", DataType::kF32}, Case{"inception3", DataType::kBF16}),
                         [](const auto& tested) {
                           return tested.param.model + (tested.param.compute == DataType::kF32 ? "_fp32" : "_bf16");
                         });

}  // namespace
}  // namespace hvd::models::implementations_test
