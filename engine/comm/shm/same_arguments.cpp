#include "engine/comm/shm/same_arguments.h"

#include <fmt/format.h>

#include "engine/base/types.h"

namespace hvd::comm {
namespace {

/// Returns text such as "100 fp32 (sum)". Omits a count of 0: ranks need not agree on that count.
std::string text_of(const Descriptor& its) {
  std::string text = its.count == 0 ? "" : std::to_string(its.count) + " ";
  text += name(static_cast<DataType>(its.dtype));
  if (its.op != kNoReduction) text += fmt::format(" ({})", name(static_cast<ReduceOp>(its.op)));
  return text;
}

}  // namespace

std::string rank_name(const NodeGroup& group, int local_rank) {
  const Layout& layout = group.layout();
  return layout.describe(layout.my_node()[static_cast<std::size_t>(local_rank)]);
}

void throw_disagreement(const NodeGroup& group, const Wait& wait, const std::string& facts) {
  group.throw_mismatch(fmt::format("{} {}: {}; all ranks must make the same calls with the same arguments",
                                   wait.operation, wait.sequence, facts));
}

void check_same_arguments(const NodeGroup& group, const Wait& wait) {
  const Descriptor& first = group.slot(0).descriptor;
  for (int r = 1; r < group.size(); ++r) {
    const Descriptor& other = group.slot(r).descriptor;
    if (other.count != first.count || other.dtype != first.dtype || other.op != first.op) {
      throw_disagreement(group, wait,
                         fmt::format("{} has {}, {} has {}", rank_name(group, 0), text_of(first), rank_name(group, r),
                                     text_of(other)));
    }
    if (other.block == first.block) continue;
    throw_disagreement(
        group, wait,
        fmt::format(
            "{} moves {} bytes at a time, {} {}: give all ranks one segment size and the same number of processors",
            rank_name(group, 0), first.block, rank_name(group, r), other.block));
  }
}

}  // namespace hvd::comm
