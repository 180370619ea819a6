#include "engine/comm/shm/node_group.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/assert.h"
#include "engine/base/error.h"
#include "engine/base/hash.h"
#include "engine/base/types.h"
#include "engine/comm/process.h"
#include "engine/comm/shm/shared_memory.h"

namespace hvd::comm {
namespace {

using namespace std::chrono_literals;

/// Time to spin before a sleep: enough for a running peer to answer, and too short to slow the compute down.
constexpr auto kSpin = 10us;
/// Number of checks of ready() before the first reading of the clock, which takes 21 ns.
constexpr int kFirstLooks = 16;
/// A sleeping rank wakes up to check for aborts of other nodes and for dead peers. Each sleep takes an eighth of the
/// time that the rank has waited, but at least kMinSlice and at most kMaxSlice. A check takes about 40 us,
/// which adds up for hundreds of ranks.
constexpr std::chrono::nanoseconds kMinSlice = 20ms;
constexpr std::chrono::nanoseconds kMaxSlice = 50ms;

std::chrono::nanoseconds slice(const Wait& wait) {
  const auto eighth = std::chrono::nanoseconds(Clock::now() - wait.start) / 8;
  return std::min(std::clamp(eighth, kMinSlice, kMaxSlice), wait.deadline.remaining());
}

bool reached(std::uint32_t value, std::uint32_t target) { return static_cast<std::int32_t>(value - target) >= 0; }

std::uint64_t mixed(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15;
  return hash ^ (hash >> 32);
}

bool same(const Note* first, const Note* second) {
  if (first == nullptr || second == nullptr) return first == second;
  return first->bytes == second->bytes && first->sender == second->sender;
}

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  // Takes some tens of cycles, as x86's pause does. `yield` takes none on cores with one hardware thread.
  // Source: https://github.com/rust-lang/rust/pull/84725
  asm volatile("isb");
#endif
}

/// Returns text such as "100 fp32 (sum)". Omits a count of 0: ranks need not agree on that count.
std::string text_of(const Descriptor& its) {
  std::string text = its.count == 0 ? "" : std::to_string(its.count) + " ";
  text += name(static_cast<DataType>(its.dtype));
  if (its.op != kNoReduction) text += fmt::format(" ({})", name(static_cast<ReduceOp>(its.op)));
  return text;
}

}  // namespace

std::uint64_t operation_id(std::string_view operation) noexcept { return Hasher().text(operation).value(); }

NodeGroup::NodeGroup(const Layout& layout, Segment segment, Faults& faults, Kind kind)
    : layout_(layout),
      segment_(segment),
      faults_(faults),
      kind_(kind),
      crowded_(sysconf(_SC_NPROCESSORS_ONLN) < layout.topology.local_size) {
  if (kind == Kind::kProcesses) {
    const std::uint64_t pid_namespace = my_pid_namespace();
    my_cell().pid_namespace.store(pid_namespace, std::memory_order_relaxed);
    if (rank() == 0) {  // the token keeps two communicators of a process from using one name
      const auto now = static_cast<std::uint64_t>(Clock::now().time_since_epoch().count());
      segment_.header().token.store(now ^ (pid_namespace << 32), std::memory_order_release);
    }
    my_cell().process.store(static_cast<std::uint32_t>(getpid()), std::memory_order_release);
  }
}

void NodeGroup::bump(Counter& counter) {
  counter.value.fetch_add(1);  // this and the load of `sleepers` below are sequentially consistent
  if (counter.sleepers.load() != 0) futex_wake_all(counter.value);
}

template <class Ready, class OnDeadline>
void NodeGroup::await(Counter& counter, int awaited, const Wait& wait, Ready ready, OnDeadline on_deadline) {
  if (ready()) return;
  if (!crowded_) {
    for (int i = 0; i < kFirstLooks; ++i) {
      pause_cpu();
      if (ready()) return;
    }
    const auto until = Clock::now() + kSpin;
    do {
      for (int i = 0; i < 8; ++i) {
        pause_cpu();
        if (ready()) return;
      }
    } while (!faults_.aborted() && Clock::now() < until);
  } else {
    // The awaited rank may need this processor. With one yield, an all-reduce of 1 KB by 4 ranks on 2 cores took 0.82
    // of the time that it took without a yield (8 B: 0.86, 1 MiB: 0.98). 4 and 16 yields were no better than one.
    sched_yield();
  }
  while (!ready()) {
    faults_.check(wait, awaited >= 0 ? global(awaited) : -1);
    if (wait.deadline.passed()) on_deadline();
    counter.sleepers.fetch_add(1);
    const std::uint32_t value = counter.value.load();
    const bool sleep = !ready() && !faults_.aborted();
    if (sleep) futex_wait(counter.value, value, slice(wait));
    counter.sleepers.fetch_sub(1);
  }
}

void NodeGroup::throw_late(std::span<const int> local_ranks, const Wait& wait) {
  std::vector<int> missing;
  std::string detail;
  for (const int local_rank : local_ranks) {
    missing.push_back(global(local_rank));
    const std::uint32_t process = segment_.process_of(local_rank, rank());
    if (process == 0 || process_state(process) != 'T') continue;
    detail += fmt::format("{}process {} is stopped", detail.empty() ? "" : "; ", process);
  }
  // If there are other nodes, a rank that has not arrived may be waiting for another node on behalf of this node.
  faults_.give_up(wait, missing, layout_.topology.nodes == 1, detail);
}

void NodeGroup::wake(Counter& counter) noexcept { futex_wake_all(counter.value); }

void NodeGroup::blame_late(Counter Cell::*counter, std::uint32_t target, const Wait& wait) {
  std::vector<int> missing;
  for (int r = 0; r < size(); ++r) {
    if (!reached((segment_.cell(r).*counter).value.load(), target)) missing.push_back(r);
  }
  if (!missing.empty()) throw_late(missing, wait);
}

void NodeGroup::await_one(Counter Cell::*counter, int local_rank, std::uint32_t target, const Wait& wait) {
  Counter& its = segment_.cell(local_rank).*counter;
  await(
      its, local_rank, wait, [&] { return reached(its.value.load(), target); },
      [&] { blame_late(counter, target, wait); });
}

void NodeGroup::await_all(Counter Cell::*counter, std::uint32_t target, const Wait& wait) {
  for (int r = 0; r < size(); ++r) await_one(counter, r, target, wait);
}

void NodeGroup::sync(const Wait& wait) {
  faults_.throw_if_aborted();
  Descriptor& mine = next_slot().descriptor;
  mine.operation = operation_id(wait.operation);
  mine.notes = std::exchange(noted_, 0);
  notes_ = 0;
  mine.sequence.store(++sequence_, std::memory_order_release);
  bump(my_cell().arrived);  // wakes sleepers; blame_late() reads the counter after the deadline
  for (int r = 0; r < size(); ++r) {
    const std::atomic<std::uint32_t>& its = slot(r).descriptor.sequence;
    await(
        segment_.cell(r).arrived, r, wait, [&] { return its.load(std::memory_order_acquire) == sequence_; },
        [&] { blame_late(&Cell::arrived, sequence_, wait); });
    __builtin_prefetch(slot(r).payload.data());
  }
  check_same_operation(wait);
}

void NodeGroup::check_same_operation(const Wait& wait) const {
  const Descriptor& mine = slot(rank()).descriptor;
  for (int r = 0; r < size(); ++r) {
    if (slot(r).descriptor.notes != mine.notes) throw_different_notes();
  }
  for (int r = 0; r < size(); ++r) {
    if (slot(r).descriptor.operation == mine.operation) continue;
    const auto its = segment_.cell(r).flights.last(1);
    throw_mismatch(fmt::format("{} is in {}, but {} is in {}: all ranks must make the same calls in the same order",
                               layout_.describe(global(rank())), wait.text(), layout_.describe(global(r)),
                               its.empty() ? "another operation" : its.front().text()));
  }
}

// The sender need not wait, because a note is overwritten only after two more synchronisations. A rank that arrives at
// the first of the two has read all notes. A rank that arrives at the second has compared the notes.
void NodeGroup::send_note(std::span<std::byte> message, int sender, const Wait& wait) {
  if (notes_ == kNotes) sync(wait);
  faults_.throw_if_aborted();
  const std::size_t index = notes_++;
  const std::uint64_t number = note_number(sequence_, index);
  noted_ = mixed(mixed(noted_, message.size() + 1), static_cast<std::uint64_t>(sender));
  Note& mine = note(rank(), sequence_, index);
  mine.sequence = wait.sequence;
  mine.bytes = message.size();
  mine.sender = static_cast<std::uint64_t>(sender);
  if (rank() == sender) std::memcpy(mine.payload.data(), message.data(), message.size());
  mine.number.store(number, std::memory_order_release);
  if (rank() == sender) return bump(my_cell().told);

  const Note& its = note(sender, sequence_, index);
  const auto told = [&] { return its.number.load(std::memory_order_acquire) == number; };
  const std::atomic<std::uint32_t>& arrived = segment_.cell(sender).slots[(sequence_ + 1) % 2].descriptor.sequence;
  const auto left = [&] { return arrived.load(std::memory_order_acquire) == sequence_ + 1; };
  await(
      segment_.cell(sender).told, sender, wait, [&] { return told() || left(); },
      [&] {
        throw_late({&sender, 1}, wait);
      });
  // A sender that has arrived at the next synchronisation without writing the note is in another call.
  if (!told() || its.bytes != mine.bytes || its.sender != mine.sender) throw_note_mismatch(sender, index, wait);
  std::memcpy(message.data(), its.payload.data(), message.size());
}

void NodeGroup::throw_note_mismatch(int sender, std::size_t index, const Wait& wait) {
  const std::uint32_t set = sequence_;
  try {
    sync(wait);
  } catch (const Error& error) {
    if (error.code() == Errc::kMismatch || faults_.aborted()) throw;
    // sync() failed only because the deadline has passed.
    faults_.throw_mismatch(difference(sender, rank(), set, index));
  }
  HVD_ASSERT(false);  // sync() compares the hashes of the notes
}

void NodeGroup::throw_different_notes() const {
  const std::uint32_t set = sequence_ - 1;
  for (std::size_t index = 0; index < kNotes; ++index) {
    for (int r = 1; r < size(); ++r) {
      if (!same(note_of(0, set, index), note_of(r, set, index))) throw_mismatch(difference(0, r, set, index));
    }
  }
  throw_mismatch(fmt::format("the ranks of {}'s host made different broadcasts", layout_.describe(global(0))));
}

std::string NodeGroup::difference(int first, int second, std::uint32_t set, std::size_t index) const {
  const Note* const first_note = note_of(first, set, index);
  const Note* const second_note = note_of(second, set, index);
  const auto text = [&](int local_rank, const Note* note) {
    const std::string name = rank_name(*this, local_rank);
    if (note == nullptr) return name + " makes another call";
    return fmt::format("{} has {} bytes from rank {}", name, note->bytes, global(static_cast<int>(note->sender)));
  };
  const Note* const either = first_note != nullptr ? first_note : second_note;
  HVD_ASSERT(either != nullptr);
  return fmt::format("broadcast {}: {}, {}; all ranks must make the same calls with the same arguments",
                     either->sequence, text(first, first_note), text(second, second_note));
}

void NodeGroup::prepare_work() {
  Work& next = segment_.header().work[(sequence_ + 1) % 2];
  next.next.store(0, std::memory_order_relaxed);
  next.done.value.store(0, std::memory_order_relaxed);
}

void NodeGroup::await_work(std::uint32_t total, const Wait& wait) {
  Counter& done = work().done;
  const auto ready = [&] { return done.value.load() >= total; };
  while (!ready()) {
    int busy = -1;
    for (int r = 0; r < size() && busy < 0; ++r) {
      if (segment_.cell(r).working.load(std::memory_order_relaxed) != 0) busy = r;
    }
    await(done, busy, wait, ready, [&] {
      std::vector<int> missing;
      for (int r = 0; r < size(); ++r) {
        if (segment_.cell(r).working.load(std::memory_order_relaxed) != 0) missing.push_back(r);
      }
      if (!ready()) throw_late(missing, wait);
    });
  }
}

NodeMemory NodeGroup::allocate(std::size_t bytes_per_rank, const Wait& wait) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t limit = (std::size_t{1} << 62) / static_cast<std::size_t>(size());
  if (bytes_per_rank > limit) {
    throw Error(Errc::kInvalidArgument, fmt::format("cannot allocate {} bytes per rank", bytes_per_rank));
  }
  const std::size_t stride = std::max<std::size_t>(1, (bytes_per_rank + page - 1) / page) * page;
  return kind_ == Kind::kThreads ? allocate_for_threads(stride, wait) : allocate_for_processes(stride, wait);
}

NodeMemory NodeGroup::allocate_for_threads(std::size_t stride, const Wait& wait) {
  NodeMemory result{nullptr, stride};
  std::string problem;
  if (rank() == 0) {
    try {
      result.memory =
          std::make_shared<SharedMemory>(SharedMemory::anonymous(stride * static_cast<std::size_t>(size())));
    } catch (const Error& error) {
      problem = error.what();
    }
    handover_->put(result.memory);
  }
  sync(wait);
  if (rank() != 0) result.memory = handover_->get();
  sync(wait);  // all ranks have called get(), so rank 0 may clear the handover
  if (rank() == 0) handover_->put(nullptr);
  if (result.memory == nullptr) {
    throw Error(Errc::kOutOfMemory, problem.empty() ? "a peer on this host could not allocate shared memory" : problem);
  }
  return result;
}

NodeMemory NodeGroup::allocate_for_processes(std::size_t stride, const Wait& wait) {
  const std::size_t total = stride * static_cast<std::size_t>(size());
  const std::size_t offset = stride * static_cast<std::size_t>(rank());
  ++allocations_;
  const auto name = [&] {
    return fmt::format("/hvd_bench.{}.{}.{}", segment_.cell(0).process.load(),
                       hex64(segment_.header().token.load(std::memory_order_acquire)), allocations_);
  };
  // Local rank 0 removes the name once all ranks have mapped the memory, and also after any failure.
  struct NameGuard {
    std::string name;
    ~NameGuard() {
      if (!name.empty()) SharedMemory::unlink(name);
    }
  } guard;
  std::shared_ptr<SharedMemory> memory;
  // If a part of the allocation fails on a rank, the rank posts the error as text in its slot. Therefore either all
  // ranks throw, or no rank throws.
  const auto agree = [&](auto&& step) {
    std::string problem;
    try {
      step();
    } catch (const Error& error) {
      problem = error.what();
    }
    Slot& mine = next_slot();
    mine.descriptor.count = std::min(problem.size(), mine.payload.size());
    std::memcpy(mine.payload.data(), problem.data(), mine.descriptor.count);
    sync(wait);
    for (int r = 0; r < size(); ++r) {
      const Slot& other = slot(r);
      if (other.descriptor.count == 0) continue;
      throw Error(Errc::kOutOfMemory,
                  std::string(reinterpret_cast<const char*>(other.payload.data()), other.descriptor.count));
    }
  };
  const auto attach = [&](SharedMemory&& made) { memory = std::make_shared<SharedMemory>(std::move(made)); };
  agree([&] {
    if (rank() != 0) return;
    attach(SharedMemory::create(name(), total));
    guard.name = name();
  });
  agree([&] {
    if (rank() != 0) attach(SharedMemory::open(name(), total));
  });
  // All ranks have mapped the memory. Without a name, the kernel frees the memory when the last process ends or
  // crashes.
  if (!guard.name.empty()) SharedMemory::unlink(std::exchange(guard.name, {}));
  agree([&] { memory->commit(offset, stride); });
  memory->populate();
  return {std::move(memory), stride};
}

std::string rank_name(const NodeGroup& group, int local_rank) {
  const Layout& layout = group.layout();
  return layout.describe(layout.my_node()[static_cast<std::size_t>(local_rank)]);
}

void throw_disagreement(const NodeGroup& group, const Wait& wait, const std::string& facts) {
  group.throw_mismatch(fmt::format("{} {}: {}; all ranks must make the same calls with the same arguments",
                                   wait.operation, wait.sequence, facts));
}

void check_same_arguments(const NodeGroup& group, const Wait& wait) {
  const Descriptor& first = group.slot(0).descriptor;
  for (int r = 1; r < group.size(); ++r) {
    const Descriptor& other = group.slot(r).descriptor;
    if (other.count != first.count || other.dtype != first.dtype || other.op != first.op) {
      throw_disagreement(group, wait,
                         fmt::format("{} has {}, {} has {}", rank_name(group, 0), text_of(first), rank_name(group, r),
                                     text_of(other)));
    }
    if (other.block == first.block) continue;
    throw_disagreement(
        group, wait,
        fmt::format(
            "{} moves {} bytes at a time, {} {}: give all ranks one segment size and the same number of processors",
            rank_name(group, 0), first.block, rank_name(group, r), other.block));
  }
}

}  // namespace hvd::comm
