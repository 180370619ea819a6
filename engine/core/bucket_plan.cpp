#include "engine/core/bucket_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "engine/base/error.h"
#include "engine/base/hash.h"
#include "engine/core/wire.h"

namespace hvd::core {
namespace {

constexpr std::uint32_t kMagic = 0x47445648;  // "HVDG"
constexpr std::size_t kMinGradient = 4 + 8 + 8;

void validate(const std::vector<GradientInfo>& gradients, DataType dtype) {
  if (gradients.empty()) throw Error(Errc::kInvalidArgument, "no gradients to plan: the list is empty");
  const std::size_t largest = std::numeric_limits<std::size_t>::max() / size_of(dtype);
  std::size_t end = 0;
  const GradientInfo* previous = nullptr;
  for (const GradientInfo& gradient : gradients) {
    const auto fail = [&](const std::string& why) {
      throw Error(Errc::kInvalidArgument, fmt::format("gradient '{}' {}", gradient.name, why));
    };
    if (gradient.count == 0) fail("has no elements");
    if (previous != nullptr && gradient.offset < end) {
      fail(fmt::format("starts at element {}, before '{}' ends at element {}: offsets must ascend without overlap",
                       gradient.offset, previous->name, end));
    }
    if (gradient.count > largest || gradient.offset > largest - gradient.count) {
      fail(fmt::format("ends beyond what 64 bits can address: offset {}, count {}", gradient.offset, gradient.count));
    }
    end = gradient.offset + gradient.count;
    previous = &gradient;
  }
}

std::uint64_t hash_of(const BucketPlan& plan, const std::vector<GradientInfo>& gradients) {
  Hasher hasher;
  hasher.number(static_cast<std::uint64_t>(plan.dtype)).number(static_cast<std::uint64_t>(plan.op));
  hasher.number(gradients.size());
  for (const GradientInfo& gradient : gradients) {
    hasher.text(gradient.name).number(gradient.offset).number(gradient.count);
  }
  hasher.number(plan.buckets.size());
  for (const Bucket& bucket : plan.buckets) {
    hasher.number(bucket.first).number(bucket.last).number(bucket.offset).number(bucket.count);
  }
  return hasher.value();
}

}  // namespace

// Backward computes the gradients one after another, those of the last layer first, and the arena holds them in this
// order. When should the ranks begin to reduce? With one reduction per gradient, the 314 gradients of ResNet-101 would
// pay the latency of a reduction 314 times. One reduction of everything could begin only when backward is over, so that
// nothing of it would be hidden. Buckets lie between: a bucket is reduced while backward computes the next ones.
//
//   arena       │ g0 │  g1   │   g2   │ g3 │     g4     │ g5  │
//               └─ bucket 0 ─┴──────── bucket 1 ────────┴─ 2 ─┘
//   time ──►
//   backward      g0    g1       g2     g3       g4       g5   end
//   reductions               [ bucket 0 ]               [ bucket 1   ][ 2 ]
//                                                             └─ exposed ─┘   the step waits for them
//
// A bucket closes with the gradient that brings it to the wanted size. Gradients are not split, so a large gradient
// makes a large bucket. The first bucket is smaller than the others, so that the first reduction begins early. The last
// bucket is complete only when backward ends, so its reduction is never hidden.
//
// A bucket is one contiguous range of the arena, alignment gaps included: nothing is packed or copied. And nothing is
// negotiated during training. The plan follows from the list of gradients and the options alone, so every rank computes
// it for itself, and the ranks compare its hash when they start.
BucketPlan plan_buckets(const std::vector<GradientInfo>& gradients, DataType dtype, ReduceOp op,
                        const BucketOptions& options) {
  validate(gradients, dtype);
  BucketPlan plan{dtype, op, {}, 0};
  Bucket open{0, 0, gradients.front().offset, 0};
  for (const GradientInfo& gradient : gradients) {
    if (open.first == open.last) open.offset = gradient.offset;
    ++open.last;
    open.count = gradient.offset + gradient.count - open.offset;
    const std::size_t enough = plan.buckets.empty() ? options.first_bucket_bytes : options.bucket_bytes;
    if (open.count * size_of(dtype) >= enough || open.last == gradients.size()) {
      plan.buckets.push_back(open);
      open = {open.last, open.last, 0, 0};
    }
  }
  plan.hash = hash_of(plan, gradients);
  return plan;
}

std::string first_difference(const std::vector<GradientInfo>& mine, const std::vector<GradientInfo>& theirs) {
  const auto values = [](const char* what, std::size_t here, std::size_t there) {
    return fmt::format("{} {} here, {} there", what, here, there);
  };
  const std::size_t common = std::min(mine.size(), theirs.size());
  for (std::size_t i = 0; i < common; ++i) {
    const std::string place = fmt::format("gradient {}: ", i);
    if (mine[i].name != theirs[i].name)
      return fmt::format("{}'{}' here, '{}' there", place, mine[i].name, theirs[i].name);
    const std::string tensor = fmt::format("{}'{}' has ", place, mine[i].name);
    if (mine[i].count != theirs[i].count) return tensor + values("count", mine[i].count, theirs[i].count);
    if (mine[i].offset != theirs[i].offset) return tensor + values("offset", mine[i].offset, theirs[i].offset);
  }
  if (mine.size() == theirs.size()) return {};
  const bool more_here = mine.size() > common;
  return fmt::format("gradient {}: '{}' is only {}; {}", common, (more_here ? mine : theirs)[common].name,
                     more_here ? "here" : "there", values("gradients", mine.size(), theirs.size()));
}

std::vector<std::byte> serialize(const std::vector<GradientInfo>& gradients) {
  WireWriter out;
  out.u32(kMagic);
  out.u32(static_cast<std::uint32_t>(gradients.size()));
  for (const GradientInfo& gradient : gradients) {
    out.text(gradient.name);
    out.u64(gradient.offset);
    out.u64(gradient.count);
  }
  return out.take();
}

std::vector<GradientInfo> deserialize_gradients(const std::vector<std::byte>& bytes) {
  WireReader in(bytes, "a gradient list");
  if (in.u32() != kMagic) in.fail("it is not a gradient list");
  std::vector<GradientInfo> gradients(in.count(kMinGradient));
  for (GradientInfo& gradient : gradients) {
    gradient.name = in.text();
    gradient.offset = in.u64();
    gradient.count = in.u64();
  }
  in.finish();
  return gradients;
}

}  // namespace hvd::core
