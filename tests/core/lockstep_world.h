// Moves N negotiators of one process through a cycle together. Plain vectors replace the control plane.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <span>
#include <variant>
#include <vector>

#include "engine/core/negotiator.h"

namespace hvd::core::test {

class LockstepWorld {
 public:
  LockstepWorld(int size, const NegotiatorOptions& options) {
    for (int rank = 0; rank < size; ++rank) ranks_.emplace_back(rank, size, options);
  }

  [[nodiscard]] std::size_t size() const { return ranks_.size(); }
  Negotiator& operator[](std::size_t rank) { return ranks_[rank]; }
  void submit_everywhere(const Request& request) {
    for (Negotiator& rank : ranks_) rank.submit(request);
  }
  [[nodiscard]] bool all_have_pending() const {
    for (const Negotiator& rank : ranks_) {
      if (!rank.has_pending()) return false;
    }
    return true;
  }

  /// Runs one whole cycle. `between` runs after each phase and may submit tensors. Real ranks would hang if they called
  /// different collectives, or reduced bit vectors of different lengths. Here cycle() throws std::bad_variant_access or
  /// fails the test instead.
  std::vector<CycleDone> cycle(const std::function<void()>& between = {}) {
    std::vector<Action> actions;
    for (Negotiator& rank : ranks_) actions.push_back(rank.begin_cycle());
    while (!std::holds_alternative<CycleDone>(actions.front())) {
      if (between) between();
      if (std::holds_alternative<AllReduceBits>(actions.front())) {
        reduce_bits(actions);
      } else if (std::holds_alternative<Gather>(actions.front())) {
        gather(actions);
      } else {
        const Bytes message = std::get<Broadcast>(actions.front()).message;
        for (std::size_t r = 0; r < size(); ++r) {
          EXPECT_TRUE(r == 0 || std::get<Broadcast>(actions[r]).message.empty());
          actions[r] = ranks_[r].on_broadcast(message);
        }
      }
    }
    std::vector<CycleDone> done;
    for (Action& action : actions) done.push_back(std::get<CycleDone>(std::move(action)));
    return done;
  }

 private:
  void reduce_bits(std::vector<Action>& actions) {
    AllReduceBits total = std::get<AllReduceBits>(actions.front());
    for (const Action& action : actions) {
      const auto& mine = std::get<AllReduceBits>(action);
      ASSERT_EQ(mine.op, total.op);
      ASSERT_EQ(mine.words.size(), total.words.size());
      for (std::size_t i = 0; i < mine.words.size(); ++i) {
        if (total.op == BitOp::kAnd) {
          total.words[i] &= mine.words[i];
        } else {
          total.words[i] |= mine.words[i];
        }
      }
    }
    for (std::size_t r = 0; r < size(); ++r) actions[r] = ranks_[r].on_bits(total.words);
  }

  void gather(std::vector<Action>& actions) {
    std::vector<Bytes> messages;
    for (Action& action : actions) messages.push_back(std::get<Gather>(std::move(action)).message);
    for (std::size_t r = 0; r < size(); ++r) {
      actions[r] = ranks_[r].on_gathered(r == 0 ? std::span<const Bytes>(messages) : std::span<const Bytes>());
    }
  }

  std::vector<Negotiator> ranks_;
};

}  // namespace hvd::core::test
