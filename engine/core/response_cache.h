// LRU cache of agreed requests. Every rank inserts and erases in the same order, so that bit positions are
// equal everywhere. Source: Horovod, horovod/common/response_cache.cc (behaviour; own code).
#pragma once

#include <cstddef>
#include <list>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/core/request.h"

namespace hvd::core {

class ResponseCache {
 public:
  enum class Lookup : std::uint8_t { kMiss, kHit, kInvalid };  ///< kInvalid: same name, other shape/type/op

  explicit ResponseCache(std::size_t capacity);  ///< 0 switches the cache off

  [[nodiscard]] Lookup lookup(const Request& request) const;
  /// Bit of a cached name; nullopt on a miss.
  [[nodiscard]] std::optional<std::size_t> bit(const std::string& name) const;
  [[nodiscard]] const Request& at(std::size_t bit) const;
  void insert(const Request& request);  ///< evicts the least recently used entry when full
  void touch(std::size_t bit);          ///< marks as most recently used
  void erase(std::size_t bit);
  [[nodiscard]] std::size_t size() const { return by_name_.size(); }
  [[nodiscard]] std::size_t capacity() const { return capacity_; }
  /// One past the highest bit ever in use: the width of the exchanged bit vector.
  [[nodiscard]] std::size_t bit_count() const { return slots_.size(); }

 private:
  struct Slot {
    std::optional<Request> request;
    std::list<std::size_t>::iterator use;
  };
  std::size_t capacity_;
  std::vector<Slot> slots_;
  std::vector<std::size_t> free_;  // smallest last
  std::list<std::size_t> order_;   // front: most recently used
  std::unordered_map<std::string, std::size_t> by_name_;
};

}  // namespace hvd::core
