// Rank 0's half of the negotiation: which ranks have asked for which tensor, and what to answer when all
// have. A detail of Negotiator, which owns one on rank 0; pure, one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/core/request.h"

namespace hvd::core {

/// Some ranks of a world.
class RankSet {
 public:
  explicit RankSet(int size) : words_((static_cast<std::size_t>(size) + 63) / 64), size_(size) {}
  /// Returns false if `rank` was in already.
  bool insert(int rank);
  [[nodiscard]] bool contains(int rank) const;
  [[nodiscard]] bool contains(const RankSet& others) const;
  [[nodiscard]] int count() const { return count_; }
  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] RankSet complement() const;
  /// "0-3, 7"
  [[nodiscard]] std::string to_text() const;
  [[nodiscard]] std::vector<int> to_vector() const;

 private:
  std::vector<std::uint64_t> words_;
  int size_;
  int count_ = 0;
};

/// What the coordinator decided about one tensor.
struct Response {
  enum class Kind : std::uint8_t {
    kAgreed,    ///< all ranks asked, alike
    kMismatch,  ///< all ranks asked, not alike: fails on all
    kOrphaned,  ///< a rank shut down without asking: fails on those that did
  };
  Kind kind = Kind::kAgreed;
  Request request;
  std::vector<std::int64_t> rows;  ///< all_gather that is agreed: [rank]
  std::string error;               ///< empty for kAgreed
};

/// The message that every rank sends: `requests` that it has not sent before, and whether it wants to stop.
std::vector<std::byte> encode_requests(std::span<const Request* const> requests, bool shutdown);
/// Errors: invalid_argument when `message` is not what Coordinator::respond() wrote.
std::vector<Response> decode_responses(std::span<const std::byte> message);

class Coordinator {
 public:
  explicit Coordinator(int size) : size_(size), stopped_(size) {}
  Coordinator(const Coordinator&) = delete;  // by_name_ points into table_
  Coordinator& operator=(const Coordinator&) = delete;

  /// Errors: invalid_argument when the message is corrupt or repeats a request; names the rank.
  void add(int rank, std::span<const std::byte> message);
  /// Answers, and forgets, every tensor that is decided. In order of first arrival, rank 0's order first.
  std::vector<std::byte> respond();

  struct Waiting {
    std::string name;
    std::vector<int> missing_ranks;
  };
  [[nodiscard]] std::vector<Waiting> waiting() const;

 private:
  /// Ranks whose requests match.
  struct Variant {
    Request request;
    RankSet ranks;
  };
  struct Entry {
    std::string name;
    RankSet ranks;                   // all that asked
    std::vector<Variant> variants;   // one unless ranks disagree
    std::vector<std::int64_t> rows;  // [rank] once somebody has asked for an all_gather
  };
  using Table = std::list<Entry>;

  Table::iterator find_or_add(const Request& request, Table::iterator guess);
  void join_variant(int rank, Entry& entry, const Request& request) const;
  [[nodiscard]] Response answer(const Entry& entry) const;

  int size_;
  RankSet stopped_;
  Table table_;                                                    // in order of first arrival
  std::unordered_map<std::string_view, Table::iterator> by_name_;  // keys point into table_
};

}  // namespace hvd::core
