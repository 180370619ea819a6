// Tensor fusion decides which of the agreed tensors are reduced together in one collective. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "engine/core/request.h"

namespace hvd::core {

struct FusionOptions {
  /// Largest size of a fused group. The default is that of Horovod since 2020 (before, it was 64 MB). 0: no fusion.
  std::size_t threshold_bytes = std::size_t{128} << 20;
  /// Each tensor's start in the fusion buffer is a multiple of this; 0 and 1: no alignment.
  std::size_t align_bytes = 64;
};

/// The properties of a tensor that fusion depends on; equal on all ranks.
struct FusionItem {
  DataType dtype = DataType::kF32;
  ReduceOp op = ReduceOp::kSum;
  std::size_t bytes = 0;
  Terms terms = {};
};

/// `rows`: for an all_gather, the number of rows of each rank. Errors: those of gathered_bytes() and Request::bytes().
FusionItem item_of(const Request& request, std::span<const std::int64_t> rows);

/// Groups of items. `members` holds indices into a list of items: group g is members[ends[g-1] .. ends[g]). The groups,
/// and the items of a group, are in execution order.
struct FusionGroups {
  std::vector<std::uint32_t> members;
  std::vector<std::uint32_t> ends;
  [[nodiscard]] std::size_t size() const { return ends.size(); }
  [[nodiscard]] std::span<const std::uint32_t> operator[](std::size_t group) const {
    const std::uint32_t begin = group == 0 ? 0 : ends[group - 1];
    return std::span(members).subspan(begin, ends[group] - begin);
  }
};

/// Groups the items for execution. The groups are in the order of their first items. The tensors of one group share
/// dtype, op and terms, and fit into threshold_bytes, alignment included. A tensor larger than the threshold is a group
/// by itself. If a tensor cannot join a group, later tensors are tried while the group's bytes + skipped bytes <=
/// threshold_bytes. Operations other than all_reduce are not grouped. If all items have the same dtype, op and terms,
/// the time is linear in the number of items. Source: arXiv:1802.05799, Tensor Fusion; look-ahead as in
/// horovod/common/controller.cc FuseResponses.
FusionGroups group(std::span<const FusionItem> items, const FusionOptions& options);

/// Like group(), but returns batches. names[i] and tags[i] belong to items[i]. The caller keeps owning the names' text.
std::vector<Batch> fuse_names(std::span<const FusionItem> items, std::span<const std::string_view> names,
                              std::span<const Tag> tags, const FusionOptions& options);

}  // namespace hvd::core
