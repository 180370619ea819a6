// Runs worlds of threads with one fault each, at a random point of random collectives. Every rank must return in time,
// with the right answer or an Error. A seed decides the world, the collectives and the fault; the threads still
// race. HVD_FAULT_SEED is the first seed (default 1), HVD_FAULT_RUNS the number of seeds (300; nightly 10,000).
//
// If the content of a message changes but its length does not, the engine cannot find the fault: it has no checksums
// and relies on the checksums of TCP, InfiniBand and memory. The test then asserts only that no rank crashes or hangs.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/mutex.h"
#include "engine/comm/loopback/loopback.h"
#include "tests/comm/faulty_transport.h"

namespace hvd::test::fault_injection_test {
namespace {

using namespace std::chrono_literals;
using comm::Communicator;

/// Deadline for worlds in which some rank waits for a message that never comes. On a busy machine a healthy rank may
/// miss the deadline. The other ranks then report the healthy rank, which is not a failure of the test.
constexpr auto kShortDeadline = 50ms;
constexpr auto kLongDeadline = 60s;
/// A rank may need at most kShortDeadline + kSlack. kSlack is the time of two roll calls (faults.cpp) and a reserve for
/// busy machines with sanitizers. kLongDeadline is far longer than this limit.
constexpr auto kSlack = 15s;
/// Number of worlds that run at the same time. Most of their threads sleep.
constexpr int kWorldsAtOnce = 16;

enum class Kind : std::uint8_t {
  kAllReduce,
  kRegistered,
  kReduceScatter,
  kAllGather,
  kAllToAll,
  kBroadcast,
  kBarrier,
  kBits,
  kGather,
  kMessage
};
constexpr std::array kKindNames{"all_reduce",     "registered all_reduce",
                                "reduce_scatter", "all_gather",
                                "all_to_all",     "broadcast",
                                "barrier",        "all_reduce_bits",
                                "gather",         "broadcast of a message"};
constexpr std::array kFaultNames{"nothing", "delays", "kill", "cut", "truncate", "lengthen", "flip"};

struct Step {
  Kind kind = Kind::kBarrier;
  std::size_t count = 0;  ///< number of elements; the share of rank r has count + r elements
  DataType dtype = DataType::kI32;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
  [[nodiscard]] std::string text() const {
    return std::string(kKindNames[static_cast<std::size_t>(kind)]) + " of " + std::to_string(count) + " x " +
           std::string(name(dtype));
  }
};

struct Plan {
  std::uint64_t seed = 0;
  int ranks = 2, per_node = 0;
  comm::CommOptions options;
  std::vector<Step> steps;
  FaultKind fault = FaultKind::kNone;
  Notices notices = Notices::kArrive;
  int victim = 0;
  std::uint64_t point = 0;

  /// Returns true if a rank may wait for a message that never comes.
  [[nodiscard]] bool somebody_waits() const {
    return fault == FaultKind::kKill || fault == FaultKind::kCut || fault == FaultKind::kFlip ||
           (notices == Notices::kSomeLost && fault >= FaultKind::kTruncate);
  }
  [[nodiscard]] Deadline deadline() const {
    return somebody_waits() ? Deadline::after(kShortDeadline) : Deadline::after(kLongDeadline);
  }
  [[nodiscard]] std::string text() const {
    return "seed " + std::to_string(seed) + " (" + std::to_string(ranks) + " ranks, " + std::to_string(per_node) +
           " per node, " + std::string(name(options.algorithm)) + "; " + kFaultNames[static_cast<std::size_t>(fault)] +
           " on rank " + std::to_string(victim) + " at " + std::to_string(point) +
           (notices == Notices::kArrive  ? ""
            : notices == Notices::kTwice ? ", notices twice"
                                         : ", notices lost") +
           ")";
  }
};

Plan plan_of(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::uint64_t limit) { return random() % limit; };
  Plan plan;
  plan.seed = seed;
  plan.ranks = 2 + static_cast<int>(below(5));
  plan.per_node = static_cast<int>(below(4));  // 0: one node
  const bool one_node = plan.per_node == 0 || plan.per_node >= plan.ranks;
  constexpr std::array kAlgorithms{
      comm::Algorithm::kAuto,         comm::Algorithm::kRing,         comm::Algorithm::kRecursiveDoubling,
      comm::Algorithm::kRabenseifner, comm::Algorithm::kHierarchical, comm::Algorithm::kSharedMemory};
  plan.options.algorithm = kAlgorithms[below(kAlgorithms.size() - (one_node ? 0 : 1))];
  plan.options.segment_bytes = 1024U << below(4);
  constexpr std::array kTypes{DataType::kI32, DataType::kF32, DataType::kF64, DataType::kI64};
  constexpr std::array kOps{ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax};
  constexpr std::array<std::size_t, 4> kCounts{1, 70, 2000, 20000};
  for (std::uint64_t steps = 3 + below(6); steps > 0; --steps) {
    plan.steps.push_back({static_cast<Kind>(below(10)), 1 + below(kCounts[below(4)]), kTypes[below(4)], kOps[below(3)],
                          static_cast<int>(below(static_cast<std::uint64_t>(plan.ranks)))});
  }
  plan.fault = static_cast<FaultKind>(below(kFaultKinds));
  plan.notices = static_cast<Notices>(below(3));
  plan.victim = static_cast<int>(below(static_cast<std::uint64_t>(plan.ranks)));
  // Low values of `point` are more likely than high values, because some worlds have only 3 points at which the fault
  // can happen, and other worlds have some hundred.
  plan.point = below(1U << below(7));
  return plan;
}

/// Small integers, so that every type holds all results exactly, in any order of summation.
int value(int rank, std::size_t step, std::size_t i) {
  return static_cast<int>((static_cast<std::size_t>(rank) * 31 + step * 17 + i * 7) % 23) - 11;
}

/// Runs step `index` of `plan`. Returns a description of the wrong answer, or an empty string if the answer is right.
template <class T>
std::string run_data(Communicator& c, const Plan& plan, std::size_t index) {
  const Step& step = plan.steps[index];
  const int n = plan.ranks, me = c.topology().rank;
  const auto ranks = static_cast<std::size_t>(n);
  const auto mine_at = static_cast<std::size_t>(me);
  // The share of rank r has count + r elements.
  std::vector<std::size_t> counts(ranks);
  std::iota(counts.begin(), counts.end(), step.count);
  const std::size_t total = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  const std::size_t before = std::accumulate(counts.begin(), counts.begin() + me, std::size_t{0});
  const auto fill = [&](int rank, std::size_t size) {
    std::vector<T> data(size);
    for (std::size_t i = 0; i < size; ++i) data[i] = static_cast<T>(value(rank, index, i));
    return data;
  };
  const auto reduced = [&](std::size_t size) {
    std::vector<T> result = fill(0, size);
    for (int r = 1; r < n; ++r) {
      for (std::size_t i = 0; i < size; ++i) {
        const T x = static_cast<T>(value(r, index, i));
        result[i] = step.op == ReduceOp::kSum   ? static_cast<T>(result[i] + x)
                    : step.op == ReduceOp::kMin ? std::min(result[i], x)
                                                : std::max(result[i], x);
      }
    }
    return result;
  };
  comm::DataPlane& plane = c.data();
  std::vector<T> out, expected;
  switch (step.kind) {
    case Kind::kAllReduce:
      out = fill(me, step.count);
      plane.all_reduce(out.data(), out.size(), step.dtype, step.op, plan.deadline());
      expected = reduced(step.count);
      break;
    case Kind::kRegistered: {
      const auto memory = plane.allocate(step.count * sizeof(T), plan.deadline());
      auto* const data = reinterpret_cast<T*>(memory->bytes().data());
      const std::vector<T> in = fill(me, step.count);
      std::copy(in.begin(), in.end(), data);
      plane.all_reduce(data, step.count, step.dtype, step.op, plan.deadline());
      out.assign(data, data + step.count);
      expected = reduced(step.count);
      break;
    }
    case Kind::kReduceScatter: {
      const std::vector<T> in = fill(me, total);
      out.resize(counts[mine_at]);
      plane.reduce_scatter(out.data(), in.data(), counts, step.dtype, step.op, plan.deadline());
      const std::vector<T> all = reduced(total);
      expected.assign(all.begin() + static_cast<std::ptrdiff_t>(before),
                      all.begin() + static_cast<std::ptrdiff_t>(before + counts[mine_at]));
      break;
    }
    case Kind::kAllGather: {
      const std::vector<T> in = fill(me, counts[mine_at]);
      out.resize(total);
      plane.all_gather(out.data(), in.data(), counts, step.dtype, plan.deadline());
      for (int r = 0; r < n; ++r) {
        const std::vector<T> its = fill(r, counts[static_cast<std::size_t>(r)]);
        expected.insert(expected.end(), its.begin(), its.end());
      }
      break;
    }
    case Kind::kAllToAll: {
      const std::vector<T> in = fill(me, total);
      out.resize(counts[mine_at] * ranks);
      const std::vector<std::size_t> from_each(ranks, counts[mine_at]);
      plane.all_to_all(out.data(), from_each, in.data(), counts, step.dtype, plan.deadline());
      for (int r = 0; r < n; ++r) {
        const std::vector<T> its = fill(r, total);
        const auto begin = its.begin() + static_cast<std::ptrdiff_t>(before);
        expected.insert(expected.end(), begin, begin + static_cast<std::ptrdiff_t>(counts[mine_at]));
      }
      break;
    }
    default:
      out = me == step.root ? fill(me, step.count) : std::vector<T>(step.count);
      plane.broadcast(out.data(), out.size() * sizeof(T), step.root, plan.deadline());
      expected = fill(step.root, step.count);
      break;
  }
  return out == expected ? "" : "wrong answer";
}

comm::Bytes message_of(int rank, std::size_t step, std::size_t size) {
  comm::Bytes message(size);
  for (std::size_t i = 0; i < size; ++i) message[i] = static_cast<std::byte>(value(rank, step, i));
  return message;
}

std::string run_control(Communicator& c, const Plan& plan, std::size_t index) {
  const Step& step = plan.steps[index];
  const int me = c.topology().rank;
  comm::ControlPlane& control = c.control();
  // The message of rank r has count + r bytes.
  const auto message = [&](int rank) { return message_of(rank, index, step.count + static_cast<std::size_t>(rank)); };
  bool right = true;
  if (step.kind == Kind::kBarrier) {
    control.barrier(plan.deadline());
  } else if (step.kind == Kind::kBits) {
    std::vector<std::uint64_t> words(step.count, std::uint64_t{1} << me);
    control.all_reduce_bits(words, BitOp::kOr, plan.deadline());
    right = words == std::vector<std::uint64_t>(step.count, (std::uint64_t{1} << plan.ranks) - 1);
  } else if (step.kind == Kind::kGather) {
    const std::vector<comm::Bytes> all = control.gather(message(me), plan.deadline());
    right = all.size() == (me == 0 ? static_cast<std::size_t>(plan.ranks) : 0U);
    for (std::size_t r = 0; right && r < all.size(); ++r) right = all[r] == message(static_cast<int>(r));
  } else {
    right = control.broadcast(message(me), step.root, plan.deadline()) == message(step.root);
  }
  return right ? "" : "wrong answer";
}

std::string run_step(Communicator& c, const Plan& plan, std::size_t index) {
  if (plan.steps[index].kind >= Kind::kBarrier) return run_control(c, plan, index);
  switch (plan.steps[index].dtype) {
    case DataType::kF32: return run_data<float>(c, plan, index);
    case DataType::kF64: return run_data<double>(c, plan, index);
    case DataType::kI64: return run_data<std::int64_t>(c, plan, index);
    default: return run_data<std::int32_t>(c, plan, index);
  }
}

/// The result of one rank.
struct Outcome {
  std::string error;  ///< the text of the rank's Error; empty if the rank got no Error
  std::string fault;  ///< a failure of the test; empty if there was none
};

Outcome run_rank(Communicator& c, const Plan& plan, RankFaults& faults) {
  Outcome outcome;
  for (std::size_t i = 0; i < plan.steps.size() && outcome.error.empty(); ++i) {
    const auto start = Clock::now();
    const auto in = [&](const std::string& what) {
      return "step " + std::to_string(i) + ", " + plan.steps[i].text() + ": " + what;
    };
    try {
      faults.pass();
      if (std::string wrong = run_step(c, plan, i); !wrong.empty() && plan.fault != FaultKind::kFlip) {
        outcome.fault = in(wrong);
      }
    } catch (const Killed&) {
      return outcome;
    } catch (const Error& error) {
      outcome.error = error.what();
      if (error.code() != Errc::kMismatch) c.control().abort(error.what());  // as the engine does
    } catch (const std::exception& error) {
      outcome.fault = in(std::string("not an Error: ") + error.what());
      c.control().abort(error.what());
      return outcome;
    }
    // A rank that takes longer than `limit` was not told of the fault and waited for its deadline.
    const auto limit = (plan.somebody_waits() ? kShortDeadline : 0ms) + kSlack;
    if (Clock::now() - start > 2 * limit) outcome.fault = in("took too long");  // a step has up to two collectives
  }
  if (!outcome.error.empty()) {  // after an error every later collective must fail at once
    try {
      run_step(c, plan, 0);
      outcome.fault = "a collective succeeded after " + outcome.error;
    } catch (const Killed&) {
      return outcome;
    } catch (const Error&) {
      return outcome;
    }
  }
  return outcome;
}

/// Ends the process and names the seed if the ranks do not return, because their threads cannot be ended otherwise.
class Watchdog {
 public:
  explicit Watchdog(std::string what)
      : thread_([this, what = std::move(what)] {
          const MutexLock lock(mutex_);
          const auto until = Clock::now() + 4 * (kLongDeadline + kSlack);
          while (!over_) {
            if (changed_.wait_until(mutex_, until) || over_) continue;
            std::fprintf(stderr, "%s: a rank hangs\n", what.c_str());
            std::abort();
          }
        }) {}
  ~Watchdog() {
    {
      const MutexLock lock(mutex_);
      over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  Mutex mutex_;
  CondVar changed_;
  bool over_ HVD_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

struct Verdict {
  std::string problem;  ///< empty: all is well
  bool happened = false;
};

Verdict run_world(const Plan& plan) {
  const auto n = static_cast<std::size_t>(plan.ranks);
  std::vector<RankFaults> faults(n);
  for (std::size_t r = 0; r < n; ++r) {
    const bool hit = plan.fault == FaultKind::kDelay || static_cast<int>(r) == plan.victim;
    faults[r].kind = hit ? plan.fault : FaultKind::kNone;
    faults[r].notices = plan.notices;
    faults[r].point = plan.point;
    faults[r].seed = plan.seed + r;
  }
  auto world = comm::make_wrapped_loopback(
      plan.ranks, plan.options, plan.per_node, [&](int rank, std::unique_ptr<comm::Transport> inner) {
        return std::make_unique<FaultyTransport>(std::move(inner), faults[static_cast<std::size_t>(rank)]);
      });
  std::vector<Outcome> outcomes(n);
  {
    const Watchdog watchdog(plan.text());
    std::vector<std::jthread> threads;
    for (std::size_t r = 0; r < n; ++r) {
      threads.emplace_back([&, r] { outcomes[r] = run_rank(*world[r], plan, faults[r]); });
    }
  }
  Verdict verdict;
  for (const RankFaults& injected : faults) verdict.happened = verdict.happened || injected.happened;
  const bool damaged = verdict.happened && (plan.fault == FaultKind::kTruncate || plan.fault == FaultKind::kLengthen);
  const bool harmless = plan.fault == FaultKind::kNone || plan.fault == FaultKind::kDelay;
  bool error = false;
  for (std::size_t r = 0; r < n; ++r) {
    error = error || !outcomes[r].error.empty();
    std::string what = outcomes[r].fault;
    if (what.empty() && harmless && !outcomes[r].error.empty()) what = outcomes[r].error;
    if (!what.empty()) verdict.problem += "\n  rank " + std::to_string(r) + ": " + what;
  }
  if (damaged && !error) verdict.problem += "\n  nobody noticed the damaged message";
  return verdict;
}

std::uint64_t number_from(const char* variable, std::uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

TEST(FaultInjection, EveryRankReturnsInTimeWithTheRightAnswerOrAnError) {
  const std::uint64_t first = number_from("HVD_FAULT_SEED", 1);
  const std::uint64_t runs = number_from("HVD_FAULT_RUNS", 300);
  std::atomic<std::uint64_t> next{0};
  std::array<std::atomic<int>, kFaultKinds> happened{};
  Mutex mutex;
  {
    std::vector<std::jthread> workers;
    for (int w = 0; w < kWorldsAtOnce; ++w) {
      workers.emplace_back([&] {
        for (std::uint64_t i = next++; i < runs; i = next++) {
          const Plan plan = plan_of(first + i);
          const Verdict verdict = run_world(plan);
          if (verdict.happened) ++happened[static_cast<std::size_t>(plan.fault)];
          const MutexLock lock(mutex);
          EXPECT_EQ(verdict.problem, "") << plan.text() << "; replay: HVD_FAULT_RUNS=1 HVD_FAULT_SEED=" << plan.seed;
          if (runs == 1) std::printf("%s%s\n", plan.text().c_str(), verdict.happened ? "" : ": nothing happened");
        }
      });
    }
  }
  // For a kind of fault that never happened, the test would show nothing.
  for (std::size_t kind = 1; kind < kFaultKinds && runs >= 300; ++kind) {
    EXPECT_GE(happened[kind], static_cast<int>(runs / 50)) << kFaultNames[kind];
  }
}

}  // namespace
}  // namespace hvd::test::fault_injection_test
