#include "tests/gpu/fake_world.h"

#include <algorithm>
#include <utility>

#include "engine/base/error.h"

namespace hvd::test {
namespace {

// In a query the world takes a random number of turns below this limit. After 0 turns the query may report work as
// unfinished that could have ended.
constexpr std::uint64_t kMaxTurns = 16;
// Some streams are slow. Streams therefore end their work in an order that differs from the order in which they got the
// work.
constexpr std::uint64_t kSlow = 1, kFast = 40;

void merge(VectorClock& into, const VectorClock& other) {
  into.resize(std::max(into.size(), other.size()));
  for (std::size_t i = 0; i < other.size(); ++i) into[i] = std::max(into[i], other[i]);
}

/// Returns true if the first `count` pieces of work on `line` are ordered before the work that has the clock `later`.
bool seen(std::size_t line, std::uint64_t count, const VectorClock& later) {
  return line < later.size() && later[line] >= count;
}

bool overlap(Range a, Range b) { return a.data() < b.data() + b.size() && b.data() < a.data() + a.size(); }
bool contains(Range outer, Range inner) {
  return outer.data() <= inner.data() && inner.data() + inner.size() <= outer.data() + outer.size();
}

}  // namespace

std::vector<std::string> FakeWorld::violations() {
  const MutexLock lock(mutex_);
  return violations_;
}

void FakeWorld::report(std::string violation) {
  const MutexLock lock(mutex_);
  violations_.push_back(std::move(violation));
}

bool FakeWorld::advance(int turns) {
  const MutexLock lock(mutex_);
  bool any = false;
  for (int i = 0; i < turns && step(); ++i) any = true;
  return any;
}

std::size_t FakeWorld::add_device() {
  const MutexLock lock(mutex_);
  devices_.emplace_back();
  return devices_.size() - 1;
}

std::size_t FakeWorld::add_line() {
  const MutexLock lock(mutex_);
  lines_.push_back(0);
  weights_.push_back(random() % 2 == 0 ? kSlow : kFast);
  return lines_.size() - 1;
}

OpRef FakeWorld::enqueue(std::size_t device, std::size_t line, std::shared_ptr<const Work> work,
                         std::vector<OpRef> waits_for, std::size_t queue_share) {
  const MutexLock lock(mutex_);
  auto op = std::make_shared<Op>();
  op->work = std::move(work);
  op->device = device;
  op->line = line;
  op->queue_share = queue_share;
  devices_[device].queued += queue_share;
  op->clock = devices_[device].seen;
  for (const OpRef& before : waits_for) merge(op->clock, before->clock);
  op->clock.resize(std::max(op->clock.size(), line + 1));
  op->clock[line] = ++lines_[line];
  std::erase_if(waits_for, [](const OpRef& before) { return before->done; });
  op->waits_for = std::move(waits_for);
  check_races(op);
  pending_.push_back(op);
  return op;
}

void FakeWorld::check_races(const OpRef& op) {
  if (!op->work) return;
  const std::uint64_t count = op->clock[op->line];
  const auto touch = [&](Range range, bool write) {
    for (const Access& earlier : accesses_) {
      if (!overlap(earlier.range, range) || !(write || earlier.write)) continue;
      if (seen(earlier.line, earlier.count, op->clock)) continue;  // also true if `op` itself made the earlier access
      violations_.push_back("race: '" + earlier.label + "' " + (earlier.write ? "writes" : "reads") + " and '" +
                            op->work->label + "' " + (write ? "writes" : "reads") +
                            " the same memory, and neither waits for the other");
    }
    // All later work that is ordered after `op` is also ordered after these accesses. They are therefore no longer
    // needed.
    std::erase_if(accesses_, [&](const Access& earlier) {
      return contains(range, earlier.range) && (write || (!earlier.write && earlier.line == op->line)) &&
             seen(earlier.line, earlier.count, op->clock);
    });
    accesses_.push_back({range, write, op->line, count, op->work->label});
  };
  for (const Range range : op->work->reads) touch(range, false);
  for (const Range range : op->work->writes) touch(range, true);
}

std::uint64_t FakeWorld::random() {  // the generator splitmix64
  state_ += 0x9e3779b97f4a7c15ULL;
  std::uint64_t z = state_;
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27U)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31U);
}

bool FakeWorld::step() {
  std::vector<OpRef> able;
  std::uint64_t total = 0;
  for (const OpRef& op : pending_) {
    if (!devices_[op->device].broken.empty()) continue;
    if (!std::all_of(op->waits_for.begin(), op->waits_for.end(), [](const OpRef& before) { return before->done; }))
      continue;
    able.push_back(op);
    total += weights_[op->line];
  }
  if (able.empty()) return false;
  std::uint64_t pick = random() % total;
  for (const OpRef& op : able) {
    if (pick < weights_[op->line]) {
      run(op);
      return true;
    }
    pick -= weights_[op->line];
  }
  return true;
}

void FakeWorld::run(const OpRef& op) {
  ++turn_;
  try {
    if (!op->started && op->work && op->work->start) op->poll = op->work->start();
    op->started = true;
    if (op->poll && !op->poll()) return;
  } catch (const std::exception& error) {
    devices_[op->device].broken = error.what();
    return;
  }
  op->done = true;
  op->done_at = turn_;
  devices_[op->device].queued -= op->queue_share;
  op->waits_for.clear();
  op->poll = nullptr;
  pending_.erase(std::find(pending_.begin(), pending_.end(), op));
}

bool FakeWorld::finished(std::size_t device, const OpRef& op) {
  const MutexLock lock(mutex_);
  const std::uint64_t turns = random() % kMaxTurns;
  for (std::uint64_t i = 0; i < turns; ++i) step();
  Device& its = devices_[device];
  if (!its.broken.empty()) throw Error(Errc::kBackend, "fake GPU " + std::to_string(device) + ": " + its.broken);
  if (op && !op->done) return false;
  if (op) merge(its.seen, op->clock);
  return true;
}

std::uint64_t FakeWorld::done_at(const OpRef& op) {
  const MutexLock lock(mutex_);
  if (!op || !op->done) throw Error(Errc::kInvalidArgument, "fake GPU: the event is not over");
  return op->done_at;
}

std::string FakeWorld::user_of(Range memory) {
  const MutexLock lock(mutex_);
  for (const OpRef& op : pending_) {
    if (!op->work) continue;
    for (const auto* ranges : {&op->work->reads, &op->work->writes}) {
      if (std::any_of(ranges->begin(), ranges->end(), [&](Range range) { return overlap(range, memory); }))
        return op->work->label;
    }
  }
  return {};
}

std::string FakeWorld::work_of(std::size_t device) {
  const MutexLock lock(mutex_);
  if (!devices_[device].broken.empty()) return {};
  const auto found =
      std::find_if(pending_.begin(), pending_.end(), [&](const OpRef& op) { return op->device == device && op->work; });
  return found == pending_.end() ? std::string() : (*found)->work->label;
}

std::size_t FakeWorld::queued(std::size_t device) {
  const MutexLock lock(mutex_);
  return devices_[device].broken.empty() ? devices_[device].queued : 0;
}

void FakeWorld::forget(Range memory) {
  const MutexLock lock(mutex_);
  std::erase_if(accesses_, [&](const Access& access) { return overlap(access.range, memory); });
}

void FakeWorld::break_device(std::size_t device, std::string why) {
  const MutexLock lock(mutex_);
  devices_[device].broken = std::move(why);
}

}  // namespace hvd::test
