// Engine oracles for tests of lower(). They answer without a library whether there is an engine for a group.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "engine/base/hash.h"
#include "models/cudnn/lowering/lowering.h"

namespace hvd::models::cudnn::testing {

inline bool has(const Group& group, OpType type) {
  return std::any_of(group.operations.begin(), group.operations.end(),
                     [&](const Operation& operation) { return operation.type == type; });
}

class ServesAll : public EngineOracle {
 public:
  std::string refusal(const Program& /*program*/, const Group& /*group*/) override { return {}; }
};

/// Serves only groups with a single operation, so every fusion falls back.
class ServesSingleConvolutions : public EngineOracle {
 public:
  std::string refusal(const Program& program, const Group& group) override {
    if (group.operations.size() > 1) return "fused";
    // Also refuses weight gradients that have another type than their inputs, and all reads and writes of slices.
    for (const ValueId id : reads(group)) {
      if (program.value(id).parent != kNoValue) return "strided";
      if (program.value(id).type != program.value(group.writes[0]).type) return "two types";
    }
    return program.value(group.writes[0]).parent != kNoValue ? "strided" : "";
  }
};

/// Serves statistics, but not the sums of a batch norm's backward pass. cuDNN 9.19 answers in the same way for an H200
/// in bf16.
class ServesNoBackwardSums : public EngineOracle {
 public:
  std::string refusal(const Program& program, const Group& group) override {
    if (has(group, OpType::kNormBackwardWeights)) return "no such engine";
    if (!has(group, OpType::kConvBackwardWeights)) return {};
    return program.value(group.writes[0]).type == program.value(reads(group)[0]).type ? "" : "two types";
  }
};

/// Refuses fused groups at random. Gives the same answer for equal groups.
class ServesAtRandom : public EngineOracle {
 public:
  explicit ServesAtRandom(std::uint64_t seed) : seed_(seed) {}
  std::string refusal(const Program& program, const Group& group) override {
    const bool plain = group.operations.size() == 1;
    const auto strided = [&](ValueId id) { return program.value(id).parent != kNoValue; };
    const std::vector<ValueId> inputs = reads(group);
    const bool slices = std::any_of(inputs.begin(), inputs.end(), strided) ||
                        std::any_of(group.writes.begin(), group.writes.end(), strided);
    const bool types = program.value(group.writes[0]).type != program.value(inputs[0]).type;
    if (plain && !slices && !types) return {};
    return Hasher().number(seed_).text(signature(program, group)).value() % 2 == 0 ? "heads" : "";
  }

 private:
  std::uint64_t seed_;
};

}  // namespace hvd::models::cudnn::testing
