#include "engine/core/response_cache.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <span>
#include <utility>

#include "engine/base/assert.h"
#include "engine/base/hash.h"

namespace hvd::core {
namespace {

/// Hashes the values that are equal on all ranks: `request`, except this rank's rows of an all_gather, and all `rows`.
std::uint64_t shared_hash(const Request& request, std::span<const std::int64_t> rows) {
  Hasher hasher;
  const auto extents = [&hasher](std::span<const std::int64_t> values) {
    hasher.number(values.size());
    for (const std::int64_t value : values) hasher.number(static_cast<std::uint64_t>(value));
  };
  hasher.text(request.name).number(static_cast<std::uint64_t>(request.dtype));
  hasher.number(static_cast<std::uint64_t>(request.op)).number(static_cast<std::uint64_t>(request.terms.kind));
  hasher.number(static_cast<std::uint64_t>(request.terms.root));
  hasher.number(std::bit_cast<std::uint64_t>(request.terms.prescale));
  hasher.number(std::bit_cast<std::uint64_t>(request.terms.postscale));
  const bool by_rows = request.terms.kind == Collective::kAllGather;
  extents(std::span(request.shape).subspan(by_rows ? 1 : 0));
  extents(rows);
  return hasher.value();
}

}  // namespace

ResponseCache::ResponseCache(std::size_t capacity) : capacity_(capacity) {}

std::optional<std::size_t> ResponseCache::bit(const std::string& name, std::size_t guess) const {
  if (holds(guess) && names_[guess] == name) return guess;
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return std::nullopt;
  return found->second;
}

const Request& ResponseCache::at(std::size_t bit) const {
  HVD_ASSERT(holds(bit));
  return requests_[bit];
}

CachedAt ResponseCache::place(std::size_t bit) const {
  HVD_ASSERT(holds(bit));
  return {entries_[bit], bit};
}

std::string_view ResponseCache::name(std::size_t bit) const {
  HVD_ASSERT(holds(bit));
  return names_[bit];
}

const FusionItem& ResponseCache::item(std::size_t bit) const {
  HVD_ASSERT(holds(bit));
  return items_[bit];
}

const std::vector<std::int64_t>& ResponseCache::rows(std::size_t bit) const {
  HVD_ASSERT(holds(bit));
  return rows_[bit];
}

std::optional<std::size_t> ResponseCache::next_victim() const {
  if (capacity_ == 0 || size() < capacity_) return std::nullopt;
  // Evictions are rare and touches are frequent. A touch therefore only stores a number, and an eviction searches.
  std::size_t victim = 0;
  std::uint64_t oldest = std::numeric_limits<std::uint64_t>::max();
  for (std::size_t bit = 0; bit < entries_.size(); ++bit) {
    if (entries_[bit] == 0 || used_[bit] >= oldest) continue;
    victim = bit;
    oldest = used_[bit];
  }
  return victim;
}

std::size_t ResponseCache::new_bit() {
  if (free_.empty()) {
    entries_.push_back(0);
    used_.push_back(0);
    items_.emplace_back();
    names_.emplace_back();
    requests_.emplace_back();
    rows_.emplace_back();
    return entries_.size() - 1;
  }
  std::pop_heap(free_.begin(), free_.end(), std::greater<>());
  const std::size_t bit = free_.back();
  free_.pop_back();
  return bit;
}

void ResponseCache::insert(const Request& request, std::vector<std::int64_t> rows) {
  if (capacity_ == 0) return;
  const std::uint64_t hash = shared_hash(request, rows);
  auto found = bit(request.name);
  if (found) {
    touch(*found);
  } else {
    if (const auto victim = next_victim()) erase(*victim);
    found = new_bit();
    names_[*found] = by_name_.emplace(request.name, *found).first->first;
    used_[*found] = ++touches_;
  }
  entries_[*found] = ++last_entry_;
  items_[*found] = item_of(request, rows);
  requests_[*found] = request;
  rows_[*found] = std::move(rows);
  record(Event::kInsert, hash);
}

void ResponseCache::touch(std::size_t bit) {
  HVD_ASSERT(holds(bit));
  used_[bit] = ++touches_;
  record(Event::kTouch, bit);
}

void ResponseCache::touch_all(std::span<const std::uint64_t> words) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] == 0) continue;
    for (std::uint64_t word = words[i]; word != 0; word &= word - 1) {
      const std::size_t bit = i * 64 + static_cast<std::size_t>(std::countr_zero(word));
      HVD_ASSERT(holds(bit));
      used_[bit] = ++touches_;
    }
    record(Event::kTouch, i);
    mix(words[i]);
  }
}

void ResponseCache::erase(std::size_t bit) {
  HVD_ASSERT(holds(bit));
  erased_.push_back(by_name_.extract(requests_[bit].name));
  entries_[bit] = 0;
  requests_[bit] = {};
  free_.push_back(bit);
  std::push_heap(free_.begin(), free_.end(), std::greater<>());
  record(Event::kErase, bit);
}

void ResponseCache::record(Event event, std::uint64_t value) { mix(value * 4 + static_cast<std::uint64_t>(event)); }

void ResponseCache::mix(std::uint64_t value) {
  history_ = (history_ ^ value) * 0x9e3779b97f4a7c15ULL;
  history_ ^= history_ >> 32;
}

}  // namespace hvd::core
