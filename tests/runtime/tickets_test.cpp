// Tests tickets, small collectives and commands of the engine over loopback. The engine must execute commands in
// the caller's order.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <vector>

#include "engine/runtime/engine.h"
#include "tests/runtime/ranks.h"

namespace hvd::tickets_test {
namespace {

using test::expect_all_good;
using test::on_ranks;
using test::patient_options;
using Shape = std::vector<std::int64_t>;

/// On rank 0 the tensors are adjacent and are reduced in place. On rank 1 they are not, and must be packed. Both ranks
/// must fuse the same tensors into each batch, with the same layout, and must not deadlock.
TEST(EngineTickets, APackedAndAnInPlaceRankUnderstandEachOther) {
  expect_all_good(on_ranks(2, patient_options(Schedule::kNegotiated), [](Engine& engine, int rank) {
    std::vector<float> memory(4096, static_cast<float>(rank + 1));
    for (int round = 0; round < 20; ++round) {
      std::fill(memory.begin(), memory.end(), static_cast<float>(rank + 1));
      std::vector<Ticket> tickets;
      for (std::size_t t = 0; t < 16; ++t) {
        const std::size_t place = rank == 0 ? t : 31 - 2 * t;  // in units of 64 elements
        tickets.push_back(engine.all_reduce_async("t" + std::to_string(t), memory.data() + 64 * place, Shape{64},
                                                  DataType::kF32, ReduceOp::kSum));
      }
      for (const Ticket ticket : tickets) engine.wait(ticket);
      for (std::size_t i = 0; i < 32 * 64; ++i) {
        const bool mine = rank == 0 ? i < 16 * 64 : i / 64 % 2 == 1;
        if (memory[i] != (mine ? 3.0F : static_cast<float>(rank + 1))) {
          throw Error(Errc::kCheckFailed, "element " + std::to_string(i) + " is " + std::to_string(memory[i]));
        }
      }
    }
  }));
}

TEST(EngineTickets, TicketsAndStepsMix) {
  for (const Schedule schedule : {Schedule::kStatic, Schedule::kNegotiated}) {
    expect_all_good(on_ranks(2, patient_options(schedule), [&](Engine& engine, int rank) {
      test::GradientArena arena(engine, 6);
      for (int step = 0; step < 10; ++step) {
        float loss = static_cast<float>(rank), late = static_cast<float>(rank);
        const Ticket before = test::submit(engine, "loss", loss);
        engine.begin_step();
        Ticket inside = 0;
        if (schedule == Schedule::kStatic) {
          EXPECT_THROW(test::submit(engine, "late", late), Error);
        } else {
          inside = test::submit(engine, "late", late);
        }
        EXPECT_THROW(engine.barrier(), Error);
        for (std::size_t g = arena.gradients.size(); g-- > 0;) engine.gradient_ready(g);
        engine.finish_step();
        engine.wait(before);
        EXPECT_EQ(loss, 1.0F);
        if (inside != 0) engine.wait(inside);
      }
    }));
  }
}

/// Tickets and the gradients of a negotiated step have no order among them: one rank submits the ticket before the
/// step, the others in it, and after it.
TEST(EngineTickets, ATicketMayBeOnEitherSideOfANegotiatedStep) {
  expect_all_good(on_ranks(3, patient_options(Schedule::kNegotiated), [](Engine& engine, int rank) {
    test::GradientArena arena(engine, 6);
    for (int step = 0; step < 10; ++step) {
      const int place = (rank + step) % 3;  // 0: before the step, 1: in it, 2: after it
      auto loss = static_cast<float>(rank);
      Ticket ticket = 0;
      if (place == 0) ticket = test::submit(engine, "loss", loss);
      engine.begin_step();
      for (std::size_t g = arena.gradients.size(); g-- > 0;) {
        if (place == 1 && g == 2) ticket = test::submit(engine, "loss", loss);
        engine.gradient_ready(g);
      }
      engine.finish_step();
      if (place == 2) ticket = test::submit(engine, "loss", loss);
      engine.wait(ticket);
      EXPECT_EQ(loss, 3.0F);
    }
  }));
}

TEST(EngineTickets, SmallCollectives) {
  for (const int size : {1, 3}) {
    expect_all_good(on_ranks(size, patient_options(Schedule::kStatic), [size](Engine& engine, int rank) {
      engine.barrier();
      std::array<int, 4> values{};
      if (rank == size - 1) values = {1, 2, 3, 4};
      engine.broadcast(values.data(), sizeof values, size - 1);
      EXPECT_EQ(values[3], 4);
      const std::string hello = "rank" + std::string(static_cast<std::size_t>(rank), '!');
      const auto all = engine.gather(std::as_bytes(std::span(hello)));
      ASSERT_EQ(all.size(), rank == 0 ? static_cast<std::size_t>(size) : 0U);
      if (rank == 0) {
        EXPECT_EQ(all.back().size(), 4U + static_cast<std::size_t>(size - 1));
      }
      const auto told = engine.broadcast_message(std::as_bytes(std::span(hello)), size - 1);
      EXPECT_EQ(told.size(), 4U + static_cast<std::size_t>(size - 1));
      std::array<std::int64_t, 2> counts{rank, 1};
      engine.all_reduce(counts.data(), 2, DataType::kI64, ReduceOp::kSum);
      EXPECT_EQ(counts[0], size * (size - 1) / 2);
      EXPECT_EQ(counts[1], size);
      EXPECT_THROW(engine.broadcast(values.data(), 4, size), Error);
      EXPECT_FALSE(engine.data_plane().empty());
      EXPECT_FALSE(engine.library().empty());
    }));
  }
}

/// No rank waits between the calls, so the engine threads of the ranks reach the calls at different times.
TEST(EngineTickets, TicketsStepsAndCommandsKeepTheCallersOrder) {
  expect_all_good(on_ranks(2, patient_options(Schedule::kStatic), [](Engine& engine, int) {
    test::GradientArena arena(engine, 1);
    for (int round = 0; round < 100; ++round) {
      float before_step = 1, before_command = 1;
      const Ticket first = test::submit(engine, "first", before_step);
      arena.step();
      const Ticket second = test::submit(engine, "second", before_command);
      engine.barrier();
      EXPECT_TRUE(engine.done(first));
      EXPECT_TRUE(engine.done(second));
      engine.wait(first);
      engine.wait(second);
      EXPECT_EQ(before_step, 2.0F);
      EXPECT_EQ(before_command, 2.0F);
    }
  }));
}

}  // namespace
}  // namespace hvd::tickets_test
