#include "engine/comm/faults.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "engine/base/error.h"
#include "engine/comm/process.h"
#include "engine/comm/shm/shared_memory.h"
#include "engine/comm/transport.h"

namespace hvd::comm {
namespace {

using namespace std::chrono_literals;

constexpr auto kNap = 2ms;
/// Time that ranks have to answer the roll call which finds the rank that the other ranks wait for. Waiting ranks check
/// for roll calls at least every 50 ms (the longest slice of NodeGroup).
constexpr auto kAnswerTime = 300ms;
/// Time that ranks have to answer a second roll call. The second call is held if several ranks were silent in the
/// first, because on a busy machine ranks may just be late.
constexpr auto kSecondAnswerTime = 700ms;
/// Time between two checks for dead processes. A check takes about 40 us per rank. A wait that is shorter than this
/// time makes no check.
constexpr auto kBetweenLooks = 40ms;
/// The same outside of a wait, where the check takes time from the compute.
constexpr auto kBetweenIdleLooks = 1s;
/// A stall is reported after 1/kStallShare of the time to the deadline: late enough not to report a rank that is only
/// slow, early enough for a person to investigate.
constexpr int kStallShare = 4;

std::string seconds_since(Clock::time_point start) {
  return fmt::format("{:.1f} s", std::chrono::duration<double>(Clock::now() - start).count());
}

}  // namespace

bool Faults::on_my_node(int rank) const {
  return layout_.node_of[static_cast<std::size_t>(rank)] == layout_.topology.node;
}

void Faults::throw_if_aborted() {
  if (out_of_step_) {
    const MutexLock lock(mutex_);
    throw Error(Errc::kMismatch, node_mismatch_);
  }
  if (!aborted()) return;
  const Header& header = segment_.header();
  // State 1 (reason being written) lasts much less than a microsecond, unless the writer's process died in this state.
  for (int i = 0; i < 100 && header.abort_state.load(std::memory_order_acquire) != 2; ++i) {
    std::this_thread::sleep_for(100us);
  }
  const bool readable = header.abort_state.load(std::memory_order_acquire) == 2;
  throw Error(Errc::kPeerLost, readable ? header.reason.read() : "a peer on this host died while it reported a fault");
}

void Faults::check(const Wait& wait, int awaited) {
  throw_if_aborted();
  const auto doing = [&] {
    std::string text = "waiting in " + wait.text();
    if (awaited >= 0) text += " for " + layout_.describe(awaited);
    return text;
  };
  const std::uint32_t call = segment_.header().roll_call.load(std::memory_order_acquire);
  if (call != my_cell().answered.load(std::memory_order_relaxed)) post_status(call, doing());
  if (transport_ != nullptr) {
    take_notices(doing);
    throw_if_aborted();
  }
  look_for_dead(wait, awaited);
  warn_of_stall(wait, awaited);
}

void Faults::warn_of_stall(const Wait& wait, int awaited) {
  if (!on_stall_ || warned_in_ == wait.sequence) return;
  const auto waited = Clock::now() - wait.start;
  if (waited < (wait.deadline.when() - wait.start) / kStallShare) return;
  warned_in_ = wait.sequence;
  std::string text =
      fmt::format("{} has waited {} in {} for {}", layout_.describe(layout_.topology.rank), seconds_since(wait.start),
                  wait.text(), awaited >= 0 ? layout_.describe(awaited) : "its peers");
  if (const std::string last = awaited >= 0 ? last_flight(awaited) : ""; !last.empty()) text += ", which " + last;
  on_stall_({std::move(text), awaited, wait.deadline});
}

std::string Faults::last_flight(int rank) const {
  if (!on_my_node(rank)) return {};
  const int local = layout_.local_rank_of[static_cast<std::size_t>(rank)];
  const auto last = segment_.cell(local).flights.last(1);
  return last.empty() ? std::string() : last.front().story(Clock::now());
}

std::string Faults::with_flight(std::string_view status) const {
  const std::string last = last_flight(layout_.topology.rank);
  return last.empty() ? std::string(status) : fmt::format("{}; {}", status, last);
}

std::string Faults::flight_record() const {
  // The table has up to kMaxLines lines per rank, but only one line per rank on a node with more than kFewRanks ranks.
  constexpr int kFewRanks = 8;
  constexpr std::size_t kMaxLines = 3;
  std::vector<RankFlights> ranks;
  const MutexLock lock(mutex_);
  for (int r = 0; r < layout_.topology.size; ++r) {
    const auto at = static_cast<std::size_t>(r);
    RankFlights entries{layout_.describe(r), {}, {}};
    if (on_my_node(r)) {
      entries.flights =
          segment_.cell(layout_.local_rank_of[at]).flights.last(segment_.size() > kFewRanks ? 1 : kMaxLines);
    } else {
      entries.says = last_answers_[at];
    }
    ranks.push_back(std::move(entries));
  }
  return flight_table(ranks, Clock::now());
}

int Faults::dead_neighbour(int awaited) const {
  const std::vector<int>& node = layout_.my_node();
  for (std::size_t local = 0; local < node.size(); ++local) {
    if (awaited >= 0 ? node[local] != awaited : node[local] == layout_.topology.rank) continue;
    const std::uint32_t process = segment_.process_of(static_cast<int>(local), layout_.topology.local_rank);
    if (process != 0 && has_ended(process)) return node[local];
  }
  return -1;
}

void Faults::look_for_dead(const Wait& wait, int awaited) {
  const Clock::time_point now = Clock::now();
  if (now < std::max(next_look_, wait.start + kBetweenLooks)) return;
  next_look_ = now + kBetweenLooks;
  const int before = std::exchange(suspect_, dead_neighbour(awaited));
  const std::uint64_t in = std::exchange(suspected_in_, wait.sequence);
  // Report only at the second check: a rank may end normally while its last message has not arrived yet.
  if (suspect_ < 0 || suspect_ != before || in != wait.sequence) return;
  throw_lost(suspect_, fmt::format(" while {} waited {}in {}", layout_.describe(layout_.topology.rank),
                                   awaited >= 0 ? "for it " : "", wait.text()));
}

void Faults::look_for_dead() {
  throw_if_aborted();
  const MutexLock lock(mutex_);
  const Clock::time_point now = Clock::now();
  if (now < next_idle_look_) return;
  next_idle_look_ = now + kBetweenIdleLooks;
  const int before = std::exchange(idle_suspect_, dead_neighbour(-1));
  if (idle_suspect_ >= 0 && idle_suspect_ == before) throw_lost(idle_suspect_, "");
}

void Faults::throw_lost(int rank, std::string_view during) {
  failed_ = true;
  const int local = layout_.local_rank_of[static_cast<std::size_t>(rank)];
  const std::string last = last_flight(rank);
  throw Error(Errc::kPeerLost, fmt::format("{}{}{} has ended{}{}{}", layout_.describe(rank), kProcessEnded,
                                           segment_.process_of(local, layout_.topology.local_rank), during,
                                           last.empty() ? "" : "; it ", last));
}

std::vector<Neighbour> Faults::neighbours() const {
  std::vector<Neighbour> known;
  for (const int rank : layout_.my_node()) {
    if (rank == layout_.topology.rank) continue;
    const int local = layout_.local_rank_of[static_cast<std::size_t>(rank)];
    const std::uint32_t process = segment_.process_of(local, layout_.topology.local_rank);
    if (process != 0) known.push_back({layout_.describe(rank), process});
  }
  return known;
}

void Faults::give_up(const Wait& wait, std::span<const int> missing, bool direct, std::string_view detail) {
  const std::string me = layout_.describe(layout_.topology.rank);
  const std::string waited = fmt::format("{} waited {} in {} for ", me, seconds_since(wait.start), wait.text());
  std::vector<int> guilty(missing.begin(), missing.end());
  std::string outcome = ", which did not arrive";
  if (!direct) {
    const std::string status = fmt::format("waiting in {} for {}", wait.text(), names(guilty));
    auto answers = call_roll(status, kAnswerTime, OnAbort::kStop);
    throw_if_aborted();
    if (std::count(answers.begin(), answers.end(), std::nullopt) > 1) {
      const auto later = call_roll(status, kSecondAnswerTime, OnAbort::kStop);
      throw_if_aborted();
      for (std::size_t r = 0; r < answers.size(); ++r) {
        if (!answers[r]) answers[r] = later[r];
      }
    }
    std::vector<int> silent;
    for (std::size_t r = 0; r < answers.size(); ++r) {
      if (!answers[r]) silent.push_back(static_cast<int>(r));
    }
    if (!silent.empty()) {
      guilty = silent;
      outcome = ", which did not arrive and does not answer";
    } else if (guilty.size() == 1) {
      outcome += "; it says: " + *answers[static_cast<std::size_t>(guilty.front())];
    }
  }
  if (guilty.size() == 1) {
    if (const std::string last = last_flight(guilty.front()); !last.empty()) outcome += "; it " + last;
  }
  if (!detail.empty()) outcome += "; " + std::string(detail);
  outcome += fmt::format("; find out what blocks it, or raise {}", wait.deadline.set_by());
  failed_ = true;
  throw Error(guilty.size() == 1 ? Errc::kPeerLost : Errc::kTimeout, waited + names(guilty) + outcome);
}

std::string Faults::names(std::span<const int> ranks) const {
  return ranks.empty() ? "its peers" : layout_.describe(ranks);
}

bool Faults::raise_here(std::string_view reason) noexcept {
  Header& header = segment_.header();
  std::uint32_t none = 0;
  if (!header.abort_state.compare_exchange_strong(none, 1)) return false;
  header.reason.write(reason);
  header.abort_state.store(2, std::memory_order_release);
  for (int r = 0; r < segment_.size(); ++r) {
    Cell& cell = segment_.cell(r);
    for (Counter* counter : {&cell.arrived, &cell.told, &cell.filled, &cell.reduced}) futex_wake_all(counter->value);
  }
  for (Work& work : header.work) futex_wake_all(work.done.value);
  return true;
}

void Faults::abort(std::string_view reason) noexcept {
  if (raise_here(reason)) tell_other_nodes(reason);
}

void Faults::tell_other_nodes(std::string_view reason) noexcept {
  if (transport_ == nullptr) return;
  for (int r = 0; r < layout_.topology.size; ++r) {
    if (!on_my_node(r)) transport_->notify(r, {Notice::Kind::kAbort, layout_.topology.rank, std::string(reason)});
  }
}

void Faults::abort_for_mismatch(std::string_view text) noexcept {
  abort(fmt::format("{}{}{}", layout_.describe(layout_.topology.rank), kGaveUp, text));
}

void Faults::throw_mismatch(const std::string& text) {
  abort_for_mismatch(text);
  throw Error(Errc::kMismatch, text);
}

void Faults::throw_node_mismatch(const std::string& text) {
  if (layout_.topology.nodes > 1) {
    {
      const MutexLock lock(mutex_);
      node_mismatch_ = text;
    }
    out_of_step_ = true;
    if (layout_.topology.local_rank == 0) {
      tell_other_nodes(fmt::format("{}{}{}", layout_.describe(layout_.topology.rank), kGaveUp, text));
    }
  }
  throw Error(Errc::kMismatch, text);
}

template <class Status>
void Faults::take_notices(Status status) {
  if (transport_ == nullptr) return;
  while (auto notice = transport_->poll_notice()) {
    if (notice->kind == Notice::Kind::kAbort) {
      raise_here(notice->text);
      continue;
    }
    {
      const MutexLock lock(mutex_);
      statuses_[static_cast<std::size_t>(notice->from)] = notice->text;
      last_answers_[static_cast<std::size_t>(notice->from)] = notice->text;
    }
    if (notice->kind == Notice::Kind::kRollCall) {
      transport_->notify(notice->from, {Notice::Kind::kStatus, layout_.topology.rank, status()});
    }
  }
}

void Faults::post_status(std::uint32_t call, std::string_view status) {
  const MutexLock lock(mutex_);  // only one thread at a time may write the status
  my_cell().status.write(status);
  my_cell().answered.store(call, std::memory_order_release);
}

void Faults::answer_roll_call(std::string_view status) {
  const std::uint32_t call = segment_.header().roll_call.load(std::memory_order_acquire);
  if (call != my_cell().answered.load(std::memory_order_relaxed)) post_status(call, with_flight(status));
  take_notices([&] { return with_flight(status); });
}

void Faults::collect_local(std::uint32_t since) {
  const std::vector<int>& node = layout_.my_node();
  for (std::size_t local = 0; local < node.size(); ++local) {
    const Cell& cell = segment_.cell(static_cast<int>(local));
    if (cell.answered.load(std::memory_order_acquire) <= since) continue;
    std::string text = cell.status.read();
    const MutexLock lock(mutex_);
    statuses_[static_cast<std::size_t>(node[local])] = std::move(text);
  }
}

std::vector<std::optional<std::string>> Faults::roll_call(std::string_view status, std::chrono::milliseconds patience) {
  return call_roll(status, patience, OnAbort::kGoOn);
}

std::vector<std::optional<std::string>> Faults::call_roll(std::string_view status, std::chrono::milliseconds patience,
                                                          OnAbort on_abort) {
  const auto until = Clock::now() + patience;
  const int me = layout_.topology.rank;
  std::uint32_t since = 0;
  {
    const MutexLock lock(mutex_);
    since = seen_call_;
  }
  const std::string mine = with_flight(status);
  post_status(segment_.header().roll_call.fetch_add(1) + 1, mine);
  if (transport_ != nullptr) {
    for (int r = 0; r < layout_.topology.size; ++r) {
      if (!on_my_node(r)) transport_->notify(r, {Notice::Kind::kRollCall, me, mine});
    }
  }
  while (true) {
    answer_roll_call(status);  // peers may hold a roll call at the same time
    collect_local(since);
    {
      const MutexLock lock(mutex_);
      const bool complete =
          std::all_of(statuses_.begin(), statuses_.end(), [](const auto& s) { return s.has_value(); });
      if (complete || Clock::now() >= until || (on_abort == OnAbort::kStop && aborted())) {
        seen_call_ = segment_.header().roll_call.load(std::memory_order_acquire);
        auto result = statuses_;
        std::fill(statuses_.begin(), statuses_.end(), std::nullopt);
        return result;
      }
    }
    std::this_thread::sleep_for(kNap);
  }
}

}  // namespace hvd::comm
