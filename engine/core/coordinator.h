// Rank 0's half of the negotiation. The Coordinator records which ranks have requested which tensor, and answers a
// tensor once all ranks have requested it. Pure; used by one thread. Only the Negotiator of rank 0 owns a Coordinator.
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

/// A subset of the ranks of a world.
class RankSet {
 public:
  explicit RankSet(int size) : words_((static_cast<std::size_t>(size) + 63) / 64), size_(size) {}
  /// Returns false if the set already contains `rank`.
  bool insert(int rank);
  [[nodiscard]] bool contains(int rank) const;
  [[nodiscard]] int count() const { return count_; }
  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] RankSet complement() const;
  /// Returns, for example, "ranks 0-3, 7".
  [[nodiscard]] std::string to_text() const;
  [[nodiscard]] std::vector<int> to_vector() const;

 private:
  std::vector<std::uint64_t> words_;
  int size_;
  int count_ = 0;
};

/// The coordinator's decision about one tensor.
struct Response {
  Request request;
  std::vector<std::int64_t> rows;  ///< [rank]: the ranks' rows in an agreed all_gather; else empty
  std::string error;               ///< empty if all ranks agree; else the tensor fails on all ranks
};

/// Encodes the message that every rank sends: the `requests` that it has not sent before.
std::vector<std::byte> encode_requests(std::span<const Request* const> requests);
/// Decodes a message of Coordinator::respond(). Errors: invalid_argument if respond() cannot have made `message`.
std::vector<Response> decode_responses(std::span<const std::byte> message);

class Coordinator {
 public:
  explicit Coordinator(int size) : size_(size) {}
  Coordinator(const Coordinator&) = delete;  // by_name_ points into table_
  Coordinator& operator=(const Coordinator&) = delete;

  /// Records the requests in the message of `rank`.
  /// Errors: invalid_argument, naming the rank, if the message is corrupt or repeats a request.
  void add(int rank, std::span<const std::byte> message);
  /// Encodes the answers for all decided tensors, in the order of their first requests, and forgets these tensors.
  std::vector<std::byte> respond();

  struct Waiting {
    std::string name;
    std::vector<int> missing_ranks;
  };
  [[nodiscard]] std::vector<Waiting> waiting() const;

 private:
  /// One form of a request, and the ranks that sent it.
  struct Variant {
    Request request;
    RankSet ranks;
  };
  struct Entry {
    std::string name;
    RankSet ranks;                   // all ranks that sent a request
    std::vector<Variant> variants;   // one element unless ranks disagree
    std::vector<std::int64_t> rows;  // [rank]: the ranks' rows, if a rank has requested an all_gather; else empty
  };
  using Table = std::list<Entry>;

  Table::iterator find_or_add(const Request& request, Table::iterator guess);
  void join_variant(int rank, Entry& entry, const Request& request) const;
  [[nodiscard]] static Response answer(const Entry& entry);

  int size_;
  Table table_;                                                    // in order of first arrival
  std::unordered_map<std::string_view, Table::iterator> by_name_;  // keys point into table_
};

}  // namespace hvd::core
