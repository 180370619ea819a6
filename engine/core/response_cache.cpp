#include "engine/core/response_cache.h"

#include <algorithm>
#include <functional>

#include "engine/base/assert.h"
#include "engine/base/hash.h"

namespace hvd::core {

ResponseCache::ResponseCache(std::size_t capacity) : capacity_(capacity) {}

ResponseCache::Lookup ResponseCache::lookup(const Request& request) const {
  const auto found = bit(request.name);
  if (!found) return Lookup::kMiss;
  return at(*found) == request ? Lookup::kHit : Lookup::kInvalid;
}

std::optional<std::size_t> ResponseCache::bit(const std::string& name) const {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return std::nullopt;
  return found->second;
}

const Request& ResponseCache::at(std::size_t bit) const {
  HVD_ASSERT(holds(bit));
  return *slots_[bit].request;
}

std::optional<std::size_t> ResponseCache::next_victim() const {
  if (capacity_ == 0 || size() < capacity_) return std::nullopt;
  return order_.back();
}

void ResponseCache::insert(const Request& request) {
  if (capacity_ == 0) return;
  if (const auto known = bit(request.name)) {
    slots_[*known].request = request;
    touch(*known);
  } else {
    if (const auto victim = next_victim()) erase(*victim);
    std::size_t slot = slots_.size();
    if (free_.empty()) {
      slots_.emplace_back();
    } else {
      std::pop_heap(free_.begin(), free_.end(), std::greater<>());
      slot = free_.back();
      free_.pop_back();
    }
    order_.push_front(slot);
    slots_[slot] = {request, order_.begin()};
    by_name_.emplace(request.name, slot);
  }
  Hasher hasher;
  hasher.text(request.name).number(static_cast<std::uint64_t>(request.dtype));
  hasher.number(static_cast<std::uint64_t>(request.op)).number(request.shape.size());
  for (const std::int64_t extent : request.shape) hasher.number(static_cast<std::uint64_t>(extent));
  record(Event::kInsert, hasher.value());
}

void ResponseCache::touch(std::size_t bit) {
  HVD_ASSERT(holds(bit));
  order_.splice(order_.begin(), order_, slots_[bit].use);
  record(Event::kTouch, bit);
}

void ResponseCache::erase(std::size_t bit) {
  HVD_ASSERT(holds(bit));
  by_name_.erase(slots_[bit].request->name);
  order_.erase(slots_[bit].use);
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
