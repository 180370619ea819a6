#include "bench/coll/problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>

#include "engine/base/align.h"
#include "engine/base/error.h"
#include "engine/core/bucket_plan.h"
#include "models/graph/autodiff.h"
#include "models/zoo/zoo.h"

namespace hvd::bench::coll {
namespace {

/// More sizes than this are treated as a mistake in -i, because nobody reads a table with so many lines.
constexpr std::size_t kMaxSizes = 4096;

template <class Names, class Value>
std::string_view find_name(const Names& names, Value value) noexcept {
  const auto found = std::find_if(names.begin(), names.end(), [&](const auto& entry) { return entry.first == value; });
  return found == names.end() ? "unknown" : found->second;
}

}  // namespace

std::string_view name(MeasuredCollective collective) noexcept {
  return kCollectiveNames[static_cast<std::size_t>(collective)];
}

bool reduces(MeasuredCollective collective) noexcept {
  return collective == MeasuredCollective::kAllReduce || collective == MeasuredCollective::kReduceScatter;
}

bool has_in_place(MeasuredCollective collective) noexcept {
  return collective != MeasuredCollective::kAllToAll && collective != MeasuredCollective::kBarrier;
}

bool has_out_of_place(MeasuredCollective collective) noexcept { return collective != MeasuredCollective::kBroadcast; }

std::string_view nccl_name(DataType type) noexcept { return find_name(kTypeNames, type); }
std::string_view nccl_name(ReduceOp op) noexcept { return find_name(kOpNames, op); }

bool has_shares(MeasuredCollective collective) noexcept {
  return collective == MeasuredCollective::kReduceScatter || collective == MeasuredCollective::kAllGather ||
         collective == MeasuredCollective::kAllToAll;
}

std::size_t Problem::share(int rank) const { return ragged ? count * static_cast<std::size_t>(rank + 1) : count; }

std::size_t Problem::total(int ranks) const {
  const auto world = static_cast<std::size_t>(ranks);
  return count * (ragged ? world * (world + 1) / 2 : world);
}

std::vector<std::size_t> Problem::shares(int ranks) const {
  std::vector<std::size_t> counts;
  counts.reserve(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) counts.push_back(share(rank));
  return counts;
}

std::size_t Problem::message(int from, int to, int ranks) const { return share((from + to) % ranks); }

std::size_t Problem::in_count(int ranks) const {
  const bool all = collective == MeasuredCollective::kReduceScatter || collective == MeasuredCollective::kAllToAll;
  if (all) return total(ranks);
  return collective == MeasuredCollective::kAllGather ? share(ranks - 1) : count;
}

std::size_t Problem::out_count(int ranks) const {
  const bool all = collective == MeasuredCollective::kAllGather || collective == MeasuredCollective::kAllToAll;
  if (all) return total(ranks);
  return collective == MeasuredCollective::kReduceScatter ? share(ranks - 1) : count;
}

std::size_t Problem::bytes(int ranks) const { return std::max(in_count(ranks), out_count(ranks)) * size_of(type); }

std::size_t Problem::footprint(int ranks) const {
  const std::size_t in = align_up(in_count(ranks) * size_of(type), kBufferAlignment);
  const std::size_t out = align_up(out_count(ranks) * size_of(type), kBufferAlignment);
  return in_place ? std::max(in, out) : in + out;
}

Problem problem_of(MeasuredCollective collective, std::size_t bytes, DataType type, ReduceOp op, ProblemForm form,
                   int ranks) {
  if (collective == MeasuredCollective::kBarrier) return {collective, 0, DataType::kU8, ReduceOp::kSum, false, false};
  Problem problem{collective,    1,
                  type,          reduces(collective) ? op : ReduceOp::kSum,
                  form.in_place, form.ragged && has_shares(collective)};
  const std::size_t units = has_shares(collective) ? problem.total(ranks) : 1;
  problem.count = bytes == 0 ? 0 : std::max<std::size_t>(1, bytes / size_of(type) / units);
  return problem;
}

int root_of(const Problem& problem) noexcept { return problem.collective == MeasuredCollective::kBroadcast ? 0 : -1; }

std::string_view reduction_name(const Problem& problem) noexcept {
  return reduces(problem.collective) ? nccl_name(problem.op) : std::string_view("none");
}

double bus_factor(MeasuredCollective collective, int ranks) noexcept {
  const double share = static_cast<double>(ranks - 1) / ranks;
  switch (collective) {
    case MeasuredCollective::kAllReduce: return 2 * share;
    case MeasuredCollective::kReduceScatter:
    case MeasuredCollective::kAllGather:
    case MeasuredCollective::kAllToAll: return share;
    case MeasuredCollective::kBroadcast: return 1;
    case MeasuredCollective::kBarrier: return 0;
  }
  return 0;
}

std::vector<std::size_t> sizes_of(const SizeRange& range) {
  if (range.first > range.last) {
    throw Error(Errc::kInvalidArgument,
                fmt::format("-b {} is above -e {} (bytes); give -b at most -e", range.first, range.last));
  }
  if (range.step == 0 && range.factor < 2) {
    throw Error(Errc::kInvalidArgument,
                fmt::format("-f {}: sizes grow by a factor of at least 2, or by -i bytes", range.factor));
  }
  if (range.first == 0 && range.last > 0 && range.step == 0) {
    throw Error(Errc::kInvalidArgument, "-b 0 does not grow by a factor; give -i BYTES, or -b of at least 1");
  }
  std::vector<std::size_t> sizes{range.first};
  while (sizes.back() < range.last) {
    const std::size_t at = sizes.back();
    if (range.step > 0 ? at > range.last - std::min(range.step, range.last) : at > range.last / range.factor) break;
    sizes.push_back(range.step > 0 ? at + range.step : at * range.factor);
    if (sizes.size() > kMaxSizes) {
      throw Error(Errc::kInvalidArgument,
                  fmt::format("-i {} gives more than {} sizes from -b {} to -e {} (bytes); give a larger step",
                              range.step, kMaxSizes, range.first, range.last));
    }
  }
  return sizes;
}

std::vector<core::GradientInfo> gradients_of(const std::string& model) {
  const models::Graph graph = models::differentiate(models::build_model({.model = model, .batch_size = 1}));
  std::vector<core::GradientInfo> gradients;
  std::size_t offset = 0;
  for (const models::Parameter& parameter : graph.parameters) {
    const auto count = static_cast<std::size_t>(graph.tensor(parameter.value).shape.count());
    gradients.push_back({parameter.name, offset, count});
    constexpr std::size_t kSlotElements = 32;  // alignment of gradients in the arenas of models/onednn
    offset = align_up(offset + count, kSlotElements);
  }
  return gradients;
}

std::vector<core::GradientInfo> gradients_of(const models::ReplayProfile& profile) {
  std::vector<core::GradientInfo> gradients;
  std::size_t offset = 0;
  for (const models::ReplayProfile::Gradient& gradient : profile.gradients) {
    gradients.push_back({gradient.name, offset, gradient.count});
    offset += gradient.count;
  }
  return gradients;
}

BucketSizes bucket_sizes(const std::vector<core::GradientInfo>& gradients, DataType type,
                         const core::BucketOptions& options) {
  std::map<std::size_t, std::size_t> repeats;  // size in bytes -> number of buckets
  for (const core::Bucket& bucket : core::plan_buckets(gradients, type, ReduceOp::kSum, options).buckets) {
    ++repeats[bucket.count * size_of(type)];
  }
  if (repeats.size() > kMaxSizes) {
    throw Error(Errc::kInvalidArgument,
                fmt::format("--bucket-mb gives {} sizes of buckets, and at most {} are measured; "
                            "give a larger one",
                            repeats.size(), kMaxSizes));
  }
  BucketSizes buckets;
  for (const auto& [size, times] : repeats) {
    buckets.sizes.push_back(size);
    buckets.repeats.push_back(times);
  }
  return buckets;
}

}  // namespace hvd::bench::coll
