#include "engine/comm/flight_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>

namespace hvd::comm {
namespace {

/// Formats the difference of two times of coarse_now(), whose clock ticks at least every 10 ms.
std::string seconds(Clock::duration time) {
  if (time < std::chrono::milliseconds(10)) return "under 0.010 s";
  return fmt::format("{:.3f} s", std::chrono::duration<double>(time).count());
}

}  // namespace

std::string collective_text(std::string_view operation, std::uint64_t sequence, std::size_t bytes,
                            std::optional<DataType> dtype) {
  std::string text = fmt::format("{} {}", operation, sequence);
  if (bytes > 0) text += fmt::format(" ({} bytes{}{})", bytes, dtype ? " of " : "", dtype ? name(*dtype) : "");
  return text;
}

std::string CollectiveInFlight::text() const { return collective_text(operation, sequence, bytes, dtype); }

std::string CollectiveInFlight::story(Clock::time_point now) const {
  if (!left) return fmt::format("entered {} {} ago and has not left it", text(), seconds(now - entered));
  return fmt::format("left {} {} ago", text(), seconds(now - *left));
}

void FlightRecord::enter(std::string_view operation, std::uint64_t sequence, std::size_t bytes,
                         std::optional<DataType> dtype, Clock::time_point now) noexcept {
  // Release stores keep the fields in order without a fence, and cost nothing extra on x86. SharedText uses them, too.
  constexpr auto kRelease = std::memory_order_release;
  std::array<std::uint64_t, kNameBytes / 8> words{};
  std::memcpy(words.data(), operation.data(), std::min(operation.size(), kNameBytes));
  Entry& entry = entries_[sequence % kKept];
  entry.sequence.store(0, std::memory_order_relaxed);
  for (std::size_t i = 0; i < words.size(); ++i) entry.name[i].store(words[i], kRelease);
  entry.bytes.store(bytes, kRelease);
  entry.dtype.store(dtype ? 1U + static_cast<std::uint64_t>(*dtype) : 0U, kRelease);
  entry.entered.store(now.time_since_epoch().count(), kRelease);
  entry.left.store(0, kRelease);
  entry.sequence.store(sequence, kRelease);
  newest_.store(sequence, kRelease);
}

void FlightRecord::leave(std::uint64_t sequence, Clock::time_point now) noexcept {
  entries_[sequence % kKept].left.store(now.time_since_epoch().count(), std::memory_order_release);
}

std::optional<CollectiveInFlight> FlightRecord::read(std::uint64_t sequence) const {
  constexpr auto kAcquire = std::memory_order_acquire;
  const Entry& entry = entries_[sequence % kKept];
  if (entry.sequence.load(kAcquire) != sequence) return std::nullopt;
  CollectiveInFlight flight;
  flight.sequence = sequence;
  std::array<char, kNameBytes + 1> text{};
  for (std::size_t i = 0; i < entry.name.size(); ++i) {
    const std::uint64_t word = entry.name[i].load(kAcquire);
    std::memcpy(text.data() + i * 8, &word, 8);
  }
  flight.operation = text.data();
  flight.bytes = entry.bytes.load(kAcquire);
  const std::uint64_t dtype = entry.dtype.load(kAcquire);
  if (dtype > 0 && dtype <= kDataTypes) flight.dtype = static_cast<DataType>(dtype - 1);
  flight.entered = Clock::time_point(Clock::duration(entry.entered.load(kAcquire)));
  const Clock::rep left = entry.left.load(kAcquire);
  if (left != 0) flight.left = Clock::time_point(Clock::duration(left));
  if (entry.sequence.load(std::memory_order_relaxed) != sequence) return std::nullopt;
  return flight;
}

std::vector<CollectiveInFlight> FlightRecord::last(std::size_t most) const {
  std::vector<CollectiveInFlight> flights;
  const std::uint64_t newest = newest_.load(std::memory_order_acquire);
  for (std::uint64_t back = 0; back < std::min<std::uint64_t>({most, kKept, newest}); ++back) {
    if (auto flight = read(newest - back)) flights.push_back(*std::move(flight));
  }
  return flights;
}

InFlight::~InFlight() {
  if (record_ != nullptr && std::uncaught_exceptions() == 0) record_->leave(sequence_, coarse_now());
}

std::string flight_table(std::span<const RankFlights> ranks, Clock::time_point now) {
  std::string table;
  for (const RankFlights& entries : ranks) {
    for (const CollectiveInFlight& flight : entries.flights) {
      table += fmt::format("{}: {}, entered {} ago, {}\n", entries.rank, flight.text(), seconds(now - flight.entered),
                           flight.left ? "took " + seconds(*flight.left - flight.entered) : "not left");
    }
    if (!entries.says.empty()) table += fmt::format("{} says: {}\n", entries.rank, entries.says);
  }
  return table;
}

}  // namespace hvd::comm
