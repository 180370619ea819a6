// Several Machines that act as the ranks of one run. Each Machine is built on its own thread. The ranks exchange texts.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/cudnn/lowering/oracles.h"
#include "tests/cudnn/run/machine.h"

namespace hvd::models::cudnn::testing {

/// How one rank ended.
struct Outcome {
  std::string error;  ///< the error, such as "mismatch: rank 1: ..."; empty if the step was made
  Plan plan;
  int plans = 0;
  std::size_t exchanges = 0;
  std::string engines, notes, description;
};

/// A function that may change a text before the other ranks get it. `rank` is the sender. `number` counts the sender's
/// texts from 0.
using Distort = std::function<void(std::size_t rank, std::size_t number, std::string& text)>;

/// Implements CudnnOptions::exchange between threads. A rank waits for at most kPatience. It does not wait for a rank
/// that has left.
class TextExchange {
 public:
  TextExchange(std::size_t ranks, Distort distort) : distort_(std::move(distort)), sent_(ranks), has_left_(ranks) {}

  std::vector<std::string> exchange(std::size_t rank, std::string text) {
    std::unique_lock lock(mutex_);
    const std::size_t number = sent_[rank]++;
    if (distort_) distort_(rank, number, text);
    Round& round = rounds_[number];
    round.texts.resize(sent_.size());
    round.texts[rank] = std::move(text);
    ++round.arrived;
    changed_.notify_all();
    const auto all = [&] { return round.arrived == sent_.size(); };
    const auto lost = [&] {
      for (std::size_t r = 0; r < sent_.size(); ++r) {
        if (has_left_[r] && sent_[r] <= number) return true;
      }
      return false;
    };
    if (!changed_.wait_for(lock, kPatience, [&] { return all() || lost(); })) {
      throw Error(Errc::kTimeout, "rank " + std::to_string(rank) + " waits in exchange " + std::to_string(number));
    }
    if (!all()) throw Error(Errc::kPeerLost, "a rank left before exchange " + std::to_string(number));
    return round.texts;
  }
  /// Call when `rank` sends no more texts. Returns how many texts it has sent.
  std::size_t leave(std::size_t rank) {
    const std::lock_guard lock(mutex_);
    has_left_[rank] = true;
    changed_.notify_all();
    return sent_[rank];
  }

 private:
  static constexpr std::chrono::seconds kPatience{60};
  struct Round {
    std::vector<std::string> texts;  // by rank
    std::size_t arrived = 0;
  };

  Distort distort_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::size_t> sent_;  // by rank: number of texts sent
  std::vector<bool> has_left_;     // by rank: true after leave()
  std::map<std::size_t, Round> rounds_;
};

/// Makes a step for each wish. Each wish is one rank. Nothing is computed. Checks that all ranks took part in equally
/// many exchanges.
inline std::vector<Outcome> on_ranks(const std::vector<Wish>& wishes, const Distort& distort = {}) {
  TextExchange texts(wishes.size(), distort);
  std::vector<Outcome> outcomes(wishes.size());
  const std::size_t objects = fake_cudnn_objects();
  const auto run = [&](std::size_t rank) {
    Wish wish = wishes[rank];
    wish.alone = false;
    wish.script = [script = wish.script](Recorder& recorder) {
      recorder.dry = true;
      if (script) script(recorder);
    };
    wish.executor.rank = static_cast<int>(rank);
    wish.executor.exchange = [&texts, rank](const std::string& mine) { return texts.exchange(rank, mine); };
    ServesAll oracle;
    Outcome& outcome = outcomes[rank];
    try {
      const Machine machine(wish, oracle);
      outcome.plan = machine.plan;
      outcome.plans = machine.plans;
      outcome.engines = machine.step->engines();
      outcome.notes = joined(machine.step->notes());
      outcome.description = machine.step->description();
    } catch (const Error& error) {
      outcome.error = std::string(name(error.code())) + ": " + error.what();
    }
    outcome.exchanges = texts.leave(rank);
  };
  {
    std::vector<std::jthread> threads;
    for (std::size_t rank = 0; rank < wishes.size(); ++rank) threads.emplace_back(run, rank);
  }
  EXPECT_EQ(fake_cudnn_objects(), objects);
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.exchanges, outcomes[0].exchanges);
  return outcomes;
}

}  // namespace hvd::models::cudnn::testing
