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

/// What is equal on all ranks: all of `request` but the rows of an all_gather, and the rows of all ranks.
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

ResponseCache::Lookup ResponseCache::lookup(const Request& request) const {
  const auto found = bit(request.name);
  if (!found) return Lookup::kMiss;
  return at(*found) == request ? Lookup::kHit : Lookup::kInvalid;
}

std::optional<std::size_t> ResponseCache::bit(const std::string& name, std::size_t guess) const {
  if (holds(guess) && slots_[guess].request->name == name) return guess;
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return std::nullopt;
  return found->second;
}

const Request& ResponseCache::at(std::size_t bit) const {
  HVD_ASSERT(holds(bit));
  return *slots_[bit].request;
}

const std::vector<std::int64_t>& ResponseCache::rows(std::size_t bit) const {
  HVD_ASSERT(holds(bit));
  return rows_[bit];
}

std::optional<std::size_t> ResponseCache::next_victim() const {
  if (capacity_ == 0 || size() < capacity_) return std::nullopt;
  // Evictions are rare, touches are not: a search here for a number there.
  std::size_t victim = 0;
  std::uint64_t oldest = std::numeric_limits<std::uint64_t>::max();
  for (std::size_t bit = 0; bit < slots_.size(); ++bit) {
    if (!slots_[bit].request || slots_[bit].used >= oldest) continue;
    victim = bit;
    oldest = slots_[bit].used;
  }
  return victim;
}

void ResponseCache::insert(const Request& request, std::vector<std::int64_t> rows) {
  if (capacity_ == 0) return;
  const std::uint64_t hash = shared_hash(request, rows);
  if (const auto known = bit(request.name)) {
    slots_[*known].request = request;
    rows_[*known] = std::move(rows);
    touch(*known);
  } else {
    if (const auto victim = next_victim()) erase(*victim);
    std::size_t slot = slots_.size();
    if (free_.empty()) {
      slots_.emplace_back();
      rows_.emplace_back();
    } else {
      std::pop_heap(free_.begin(), free_.end(), std::greater<>());
      slot = free_.back();
      free_.pop_back();
    }
    slots_[slot] = {request, ++touches_};
    rows_[slot] = std::move(rows);
    by_name_.emplace(request.name, slot);
  }
  record(Event::kInsert, hash);
}

void ResponseCache::touch(std::size_t bit) {
  HVD_ASSERT(holds(bit));
  slots_[bit].used = ++touches_;
  record(Event::kTouch, bit);
}

void ResponseCache::erase(std::size_t bit) {
  HVD_ASSERT(holds(bit));
  by_name_.erase(slots_[bit].request->name);
  slots_[bit].request.reset();
  free_.push_back(bit);
  std::push_heap(free_.begin(), free_.end(), std::greater<>());
  record(Event::kErase, bit);
}

void ResponseCache::record(Event event, std::uint64_t value) {
  // One multiplication per event: a thousand touches a cycle must not show.
  history_ = (history_ ^ (value * 4 + static_cast<std::uint64_t>(event))) * 0x9e3779b97f4a7c15ULL;
  history_ ^= history_ >> 32;
}

}  // namespace hvd::core
