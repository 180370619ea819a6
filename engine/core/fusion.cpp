#include "engine/core/fusion.h"

#include <algorithm>
#include <bit>

#include "engine/base/assert.h"

namespace hvd::core {
namespace {

constexpr std::uint32_t kEnd = 0xffffffffU;

/// Counts the bytes in use in the fusion buffer and decides whether one more tensor fits.
class Buffer {
 public:
  Buffer(const FusionOptions& options, std::size_t first_bytes)
      : options_(options), align_(std::max<std::size_t>(options.align_bytes, 1)), used_(first_bytes) {}

  [[nodiscard]] bool add(std::size_t bytes) {
    const std::size_t padding = padding_of(used_);
    // These comparisons subtract instead of adding, so that no sum overflows.
    if (used_ > options_.threshold_bytes || padding > options_.threshold_bytes - used_ ||
        bytes > options_.threshold_bytes - used_ - padding) {
      return false;
    }
    used_ += padding + bytes;
    return true;
  }

  /// Returns true if the look-ahead may pass over one more tensor of `bytes`.
  [[nodiscard]] bool skip(std::size_t bytes) {
    if (used_ > options_.threshold_bytes) return false;
    const std::size_t room = options_.threshold_bytes - used_;
    if (skipped_ > room || bytes > room - skipped_) return false;
    skipped_ += bytes;
    return true;
  }

 private:
  [[nodiscard]] std::size_t padding_of(std::size_t bytes) const {
    // A power of two needs no division. The division below takes a third of the time of a negotiation cycle.
    if (std::has_single_bit(align_)) return -bytes & (align_ - 1);
    const std::size_t over = bytes % align_;
    return over == 0 ? 0 : align_ - over;
  }

  const FusionOptions& options_;
  std::size_t align_;
  std::size_t used_;
  std::size_t skipped_ = 0;
};

}  // namespace

FusionItem item_of(const Request& request, std::span<const std::int64_t> rows) {
  const bool by_rows = request.terms.kind == Collective::kAllGather;
  return {request.dtype, request.op, by_rows ? gathered_bytes(request, rows) : request.bytes(), request.terms};
}

FusionGroups group(std::span<const FusionItem> items, const FusionOptions& options) {
  FusionGroups groups;
  const auto count = static_cast<std::uint32_t>(items.size());
  groups.members.reserve(count);
  // Items not yet placed, as a linked list, so that removing one from the middle is cheap.
  std::vector<std::uint32_t> next(count);
  for (std::uint32_t i = 0; i < count; ++i) next[i] = i + 1 < count ? i + 1 : kEnd;

  for (std::uint32_t head = count > 0 ? 0 : kEnd; head != kEnd; head = next[head]) {
    const FusionItem& first = items[head];
    groups.members.push_back(head);
    Buffer buffer(options, first.bytes);
    std::uint32_t before = head;
    // Threshold 0 disables fusion, even of tensors without elements.
    const bool fused = options.threshold_bytes > 0 && first.terms.kind == Collective::kAllReduce;
    for (std::uint32_t i = fused ? next[head] : kEnd; i != kEnd; i = next[before]) {
      const FusionItem& item = items[i];
      if (item.dtype == first.dtype && item.op == first.op && item.terms == first.terms && buffer.add(item.bytes)) {
        groups.members.push_back(i);
        next[before] = next[i];
      } else if (buffer.skip(item.bytes)) {
        before = i;
      } else {
        break;
      }
    }
    groups.ends.push_back(static_cast<std::uint32_t>(groups.members.size()));
  }
  return groups;
}

std::vector<Batch> fuse_names(std::span<const FusionItem> items, std::span<const std::string_view> names,
                              std::span<const Tag> tags, const FusionOptions& options) {
  HVD_ASSERT(names.size() == items.size() && (tags.empty() || tags.size() == items.size()));
  const FusionGroups groups = group(items, options);
  std::vector<Batch> batches(groups.size());
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const auto members = groups[g];
    Batch& batch = batches[g];
    batch.dtype = items[members.front()].dtype;
    batch.op = items[members.front()].op;
    batch.terms = items[members.front()].terms;
    batch.names.reserve(members.size());
    if (!tags.empty()) batch.tags.reserve(members.size());
    for (const std::uint32_t member : members) {
      batch.names.push_back(names[member]);
      if (!tags.empty()) batch.tags.push_back(tags[member]);
      batch.bytes += items[member].bytes;
    }
  }
  return batches;
}

}  // namespace hvd::core
