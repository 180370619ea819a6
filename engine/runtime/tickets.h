// Tracks the outstanding *_async() calls and their results. Not synchronised: the owner must guard it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "engine/runtime/engine.h"

namespace hvd {

class TicketTable {
 public:
  struct Outcome {
    std::string error;  ///< empty if the call succeeded
    Output output;
  };
  /// Returns a new ticket for the tensor `name`. Errors: invalid_argument if a tensor of this name is in flight.
  std::uint64_t issue(std::string_view name);
  void finish(std::uint64_t ticket, Outcome outcome);
  /// Returns true if finish() was called. Errors: invalid_argument for a ticket that was never issued or was already
  /// taken.
  [[nodiscard]] bool finished(std::uint64_t ticket) const;
  /// Returns the outcome of a finished ticket; null if the ticket is not finished. Errors: those of finished().
  [[nodiscard]] const Outcome* outcome(std::uint64_t ticket) const;
  /// Forgets a finished ticket and returns its outcome.
  Outcome take(std::uint64_t ticket);

 private:
  struct Entry {
    std::string name;
    std::optional<Outcome> outcome;
  };
  [[nodiscard]] const Entry& at(std::uint64_t ticket) const;

  std::uint64_t last_ = 0;
  std::unordered_map<std::uint64_t, Entry> entries_;
  std::unordered_set<std::string> in_flight_;
};

}  // namespace hvd
