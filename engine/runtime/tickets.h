// Outstanding all_reduce_async() calls: which are finished, and how. Not synchronised: the owner guards it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace hvd {

class TicketTable {
 public:
  /// Errors: invalid_argument if a tensor of that name is in flight.
  std::uint64_t issue(std::string_view name);
  /// `error` empty: reduced.
  void finish(std::uint64_t ticket, const std::string& error);
  /// Errors: invalid_argument for a ticket that was never issued or already waited for.
  [[nodiscard]] bool finished(std::uint64_t ticket) const;
  /// Forgets a finished ticket and returns its error.
  std::string take(std::uint64_t ticket);
  [[nodiscard]] bool idle() const noexcept { return in_flight_.empty(); }

 private:
  struct Entry {
    std::string name;
    std::optional<std::string> outcome;
  };
  std::uint64_t last_ = 0;
  std::unordered_map<std::uint64_t, Entry> entries_;
  std::unordered_set<std::string> in_flight_;
};

}  // namespace hvd
