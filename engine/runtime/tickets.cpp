#include "engine/runtime/tickets.h"

#include <fmt/format.h>

#include <utility>

#include "engine/base/assert.h"
#include "engine/base/error.h"

namespace hvd {

std::uint64_t TicketTable::issue(std::string_view name) {
  if (!in_flight_.emplace(name).second) {
    throw Error(Errc::kInvalidArgument, fmt::format("tensor '{}' is still in flight; wait for its ticket first", name));
  }
  entries_.emplace(++last_, Entry{std::string(name), std::nullopt});
  return last_;
}

void TicketTable::finish(std::uint64_t ticket, Outcome outcome) {
  const auto entry = entries_.find(ticket);
  HVD_ASSERT(entry != entries_.end() && !entry->second.outcome);
  in_flight_.erase(entry->second.name);
  entry->second.outcome = std::move(outcome);
}

const TicketTable::Entry& TicketTable::at(std::uint64_t ticket) const {
  const auto entry = entries_.find(ticket);
  if (entry == entries_.end()) {
    throw Error(Errc::kInvalidArgument,
                fmt::format("ticket {} was never issued or has been waited for already", ticket));
  }
  return entry->second;
}

bool TicketTable::finished(std::uint64_t ticket) const { return at(ticket).outcome.has_value(); }

const TicketTable::Outcome* TicketTable::outcome(std::uint64_t ticket) const {
  const auto& outcome = at(ticket).outcome;
  return outcome ? &*outcome : nullptr;
}

TicketTable::Outcome TicketTable::take(std::uint64_t ticket) {
  const auto entry = entries_.find(ticket);
  HVD_ASSERT(entry != entries_.end() && entry->second.outcome);
  Outcome outcome = std::move(*entry->second.outcome);
  entries_.erase(entry);
  return outcome;
}

}  // namespace hvd
