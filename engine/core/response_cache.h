// LRU cache of agreed requests. Every rank inserts and erases in the same order, so that bit positions are
// equal everywhere. Source: Horovod, horovod/common/response_cache.cc (behaviour; own code).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/core/request.h"

namespace hvd::core {

class ResponseCache {
 public:
  static constexpr std::size_t kNoGuess = SIZE_MAX;
  enum class Lookup : std::uint8_t { kMiss, kHit, kInvalid };  ///< kInvalid: same name, other shape/type/op

  explicit ResponseCache(std::size_t capacity);  ///< 0 switches the cache off
  // Slots point into order_: a copy would point into the original's.
  ResponseCache(const ResponseCache&) = delete;
  ResponseCache& operator=(const ResponseCache&) = delete;
  ResponseCache(ResponseCache&&) noexcept = default;
  ResponseCache& operator=(ResponseCache&&) noexcept = default;

  [[nodiscard]] Lookup lookup(const Request& request) const;
  /// Bit of a cached name; nullopt on a miss. Looks at `guess` first, which needs no hash if it is right.
  [[nodiscard]] std::optional<std::size_t> bit(const std::string& name, std::size_t guess = kNoGuess) const;
  [[nodiscard]] bool holds(std::size_t bit) const { return bit < slots_.size() && slots_[bit].request.has_value(); }
  /// at, touch, erase: `bit` must be in use.
  [[nodiscard]] const Request& at(std::size_t bit) const;
  /// The rows of every rank of a cached all_gather, [rank]; empty for other operations.
  [[nodiscard]] const std::vector<std::int64_t>& rows(std::size_t bit) const;
  /// Takes the smallest free bit, or, when full, the one that next_victim() told; most recently used
  /// afterwards. A name that is there already keeps its bit. Does nothing when the cache is off.
  /// all_gather: `request` is this rank's own, and `rows` are all ranks'.
  void insert(const Request& request, std::vector<std::int64_t> rows = {});
  /// The bit whose entry an insert of a new name would evict; nullopt while there is room.
  [[nodiscard]] std::optional<std::size_t> next_victim() const;
  void touch(std::size_t bit);  ///< marks as most recently used
  void erase(std::size_t bit);
  [[nodiscard]] std::size_t size() const { return by_name_.size(); }
  [[nodiscard]] std::size_t capacity() const { return capacity_; }
  /// One past the highest bit ever in use: the width of the exchanged bit vector.
  [[nodiscard]] std::size_t bit_count() const { return slots_.size(); }
  /// Of everything that was ever inserted, touched and erased, in order: equal on ranks whose caches are.
  [[nodiscard]] std::uint64_t history() const { return history_; }

 private:
  struct Slot {
    std::optional<Request> request;
    std::uint64_t used = 0;  ///< number of the touch: the smallest is the least recently used
  };
  enum class Event : std::uint8_t { kInsert = 1, kTouch, kErase };
  void record(Event event, std::uint64_t value);

  std::size_t capacity_;
  std::vector<Slot> slots_;
  std::vector<std::vector<std::int64_t>> rows_;  // [bit]; apart, for most entries have none
  std::vector<std::size_t> free_;                // heap, smallest on top
  std::uint64_t touches_ = 0;
  std::unordered_map<std::string, std::size_t> by_name_;
  std::uint64_t history_ = 0;
};

}  // namespace hvd::core
