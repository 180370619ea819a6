// LRU cache of agreed requests. Every rank inserts and erases in the same order. A request therefore has the same bit
// on all ranks. The cache behaves like Horovod's horovod/common/response_cache.cc; the code is our own.
//
// The fields of an entry that every cycle reads are in arrays indexed by bit, separate from the entry's request. If all
// 314 gradients of ResNet-101 are cached, a cycle reads about 20 KB in sequence, and no strings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/core/fusion.h"
#include "engine/core/request.h"

namespace hvd::core {

/// The place of a request in a cache. Entry numbers are never reused: if the entry at `bit` now has a different number,
/// the request is no longer cached.
struct CachedAt {
  std::uint64_t entry = 0;  ///< number of the entry, from 1
  std::size_t bit = 0;
};

class ResponseCache {
 public:
  static constexpr std::size_t kNoGuess = SIZE_MAX;

  explicit ResponseCache(std::size_t capacity);  ///< `capacity`: maximum number of entries; 0 switches the cache off
  // Not copyable: names_ points into by_name_, so the names of a copy would point into the original.
  ResponseCache(const ResponseCache&) = delete;
  ResponseCache& operator=(const ResponseCache&) = delete;
  ResponseCache(ResponseCache&&) noexcept = default;
  ResponseCache& operator=(ResponseCache&&) noexcept = default;

  /// Returns the bit of a cached name; nullopt on a miss. Tries the entry at `guess` first, which needs no hash.
  [[nodiscard]] std::optional<std::size_t> bit(const std::string& name, std::size_t guess = kNoGuess) const;
  [[nodiscard]] bool holds(std::size_t bit) const { return bit < entries_.size() && entries_[bit] != 0; }
  [[nodiscard]] bool holds(const CachedAt& at) const { return holds(at.bit) && entries_[at.bit] == at.entry; }
  // The methods below that take a bit require that the bit is in use.
  [[nodiscard]] const Request& at(std::size_t bit) const;
  [[nodiscard]] CachedAt place(std::size_t bit) const;
  /// Returns the name of the entry at `bit`. The text stays valid after the entry is erased, until forget_erased().
  [[nodiscard]] std::string_view name(std::size_t bit) const;
  [[nodiscard]] const FusionItem& item(std::size_t bit) const;
  /// Returns each rank's number of rows, by rank, in a cached all_gather; empty for other operations.
  [[nodiscard]] const std::vector<std::int64_t>& rows(std::size_t bit) const;
  /// Puts `request` at the smallest free bit, or at next_victim() if the cache is full, and marks the entry as most
  /// recently used. A name that is already cached keeps its bit. Does nothing if the cache is off.
  /// all_gather: `request` is this rank's own request, and `rows[r]` is the number of rows of rank r.
  void insert(const Request& request, std::vector<std::int64_t> rows = {});
  /// Returns the bit of the entry that insert() of a new name would evict; nullopt if it would evict none.
  [[nodiscard]] std::optional<std::size_t> next_victim() const;
  /// Mark one entry, or all entries whose bits are set in `words` in ascending order, as most recently used.
  void touch(std::size_t bit);
  void touch_all(std::span<const std::uint64_t> words);
  void erase(std::size_t bit);
  void forget_erased() { erased_.clear(); }
  [[nodiscard]] std::size_t size() const { return by_name_.size(); }
  [[nodiscard]] std::size_t capacity() const { return capacity_; }
  /// Returns the number of bits that ranks exchange: one more than the highest bit that has ever been in use.
  [[nodiscard]] std::size_t bit_count() const { return entries_.size(); }
  /// Returns a hash of all inserts, touches and erasures, in order. Ranks with equal caches have equal hashes.
  [[nodiscard]] std::uint64_t history() const { return history_; }

 private:
  using Names = std::unordered_map<std::string, std::size_t>;
  enum class Event : std::uint8_t { kInsert = 1, kTouch, kErase };
  void record(Event event, std::uint64_t value);
  void mix(std::uint64_t value);
  [[nodiscard]] std::size_t new_bit();

  std::size_t capacity_;
  // The following arrays are indexed by bit.
  std::vector<std::uint64_t> entries_;  // number of the entry; 0: free
  std::vector<std::uint64_t> used_;  // number of the last touch; the least recently used entry has the smallest number
  std::vector<FusionItem> items_;
  std::vector<std::string_view> names_;  // names of the entries; the text is in the keys of by_name_
  std::vector<Request> requests_;
  std::vector<std::vector<std::int64_t>> rows_;

  std::vector<std::size_t> free_;  // free bits: a heap with the smallest on top
  std::uint64_t touches_ = 0;
  std::uint64_t last_entry_ = 0;
  Names by_name_;
  std::vector<Names::node_type> erased_;  // keeps the names of erased entries valid until forget_erased()
  std::uint64_t history_ = 0;
};

}  // namespace hvd::core
