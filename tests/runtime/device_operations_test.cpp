// Tests the engine's asynchronous operations (those that return a Ticket) on fake GPUs: results, memory of the outputs,
// scale factors, and disagreements between ranks.
// Every test also checks that the fakes report no violation.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <random>

#include "engine/runtime/operations.h"
#include "tests/comm/reference.h"
#include "tests/runtime/device_network.h"
#include "tests/runtime/device_tickets.h"
#include "tests/runtime/ranks.h"

namespace hvd::test::device_operations_test {
namespace {

using device::kAllOps;
using device::kAllTypes;
using device::Values;
using Shape = std::vector<std::int64_t>;

Values input_of(int rank, DataType type, ReduceOp op = ReduceOp::kSum) {
  return [=](std::size_t i) { return device::value_of(rank, i, type, op); };
}

/// Returns the expected reduction over all ranks, from element `first` on. The factors must be powers of two.
Expected reduction(int size, DataType type, ReduceOp op, Scale scale, std::size_t first = 0) {
  const double factor = std::pow(scale.before, op == ReduceOp::kProduct ? size : 1) * scale.after;
  const double tolerance =
      op == ReduceOp::kAverage ? (size + 1) / 2.0 * device::epsilon(type) * device::kLargest * factor : 0;
  return {type, [=](std::size_t i) { return device::reduced(size, first + i, type, op) * factor; }, tolerance};
}

std::int64_t rows_before(int rank, const std::function<std::int64_t(int)>& rows) {
  std::int64_t total = 0;
  for (int r = 0; r < rank; ++r) total += rows(r);
  return total;
}

void check_all_reduces(Tickets& on, DataType type, ReduceOp op, Scale scale, const std::string& suffix) {
  const std::string what = std::string(name(op)) + suffix;
  const Values own = input_of(on.rank(), type, op);
  const Expected want = reduction(on.size(), type, op, scale);
  std::byte* const in_place = on.filled(11, type, own);
  std::byte* const in = on.filled(7, type, own);
  std::byte* const out = on.filled(7, type, [](std::size_t) { return 99.0; });
  const std::array<std::byte*, 3> group{on.filled(6, type, own), on.filled(1, type, own), on.filled(0, type, own)};
  const Shape eleven{11}, seven{7}, six{2, 3}, scalar, none{0, 4};
  const std::array<GroupTensor, 3> tensors{{{group[0], six}, {group[1], scalar}, {group[2], none}}};
  Engine& engine = on.engine();
  const std::array<Ticket, 3> tickets{engine.all_reduce_async("a " + what, in_place, eleven, type, op, scale),
                                      engine.all_reduce_into_async("i " + what, out, in, seven, type, op, scale),
                                      engine.grouped_all_reduce_async("g " + what, tensors, type, op, scale)};
  for (const Ticket ticket : tickets) EXPECT_TRUE(engine.take_output(ticket).data().empty());
  expect_values("all_reduce " + what, {in_place, 11 * size_of(type)}, 11, want);
  expect_values("all_reduce_into " + what, {out, 7 * size_of(type)}, 7, want);
  expect_values("input of " + what, {in, 7 * size_of(type)}, 7, {type, own});
  expect_values("group " + what, {group[0], 6 * size_of(type)}, 6, want);
  expect_values("group " + what, {group[1], size_of(type)}, 1, want);
}

void check_reduce_scatters(Tickets& on, DataType type, ReduceOp op, Scale scale, const std::string& suffix) {
  const Values own = input_of(on.rank(), type, op);
  for (const std::int64_t rows : {0, 2, 5, 8}) {
    const std::string what = "reduce_scatter of " + std::to_string(rows) + " rows, " + std::string(name(op)) + suffix;
    const auto count = static_cast<std::size_t>(rows * 3);
    const std::byte* const in = on.filled(count, type, own);
    const Output output =
        on.engine().take_output(on.engine().reduce_scatter_async(what, in, Shape{rows, 3}, type, op, scale));
    EXPECT_EQ(output.rows, share_rows(rows, on.size()));
    const auto share = [&](int r) { return output.rows[static_cast<std::size_t>(r)]; };
    const auto first = static_cast<std::size_t>(rows_before(on.rank(), share) * 3);
    expect_output(what, output, static_cast<std::size_t>(share(on.rank()) * 3),
                  reduction(on.size(), type, op, scale, first));
    expect_values("input of " + what, {in, count * size_of(type)}, count, {type, own});
  }
}

void check_moves(Tickets& on, DataType type, int round) {
  Engine& engine = on.engine();
  const int size = on.size();
  const Values own = input_of(on.rank(), type);
  const auto rows_of = [](int r) { return std::int64_t{(r * 3 + 1) % 4}; };  // ranks 0 to 3 have 1, 0, 3 and 2 rows
  const Output gathered = engine.take_output(
      engine.all_gather_async("gather", on.filled(static_cast<std::size_t>(rows_of(on.rank()) * 2), type, own),
                              Shape{rows_of(on.rank()), 2}, type));
  Shape rows;
  std::vector<double> all;
  for (int r = 0; r < size; ++r) {
    rows.push_back(rows_of(r));
    for (std::size_t i = 0; i < static_cast<std::size_t>(rows_of(r) * 2); ++i) all.push_back(input_of(r, type)(i));
  }
  EXPECT_EQ(gathered.rows, rows);
  expect_output("all_gather", gathered, all.size(), {type, [&](std::size_t i) { return all[i]; }});

  // The first all_to_all has splits that only the sending rank knows. The second sends the same number of rows to each
  // rank.
  for (const bool even : {false, true}) {
    const auto split = [&](int from, int to) { return std::int64_t{even ? 2 : (from * 2 + to + round) % 3}; };
    const auto row_of = [&](int from, int to) { return rows_before(to, [&](int r) { return split(from, r); }); };
    Shape splits, arriving;
    std::vector<double> received;
    for (int r = 0; r < size; ++r) {
      splits.push_back(split(on.rank(), r));
      arriving.push_back(split(r, on.rank()));
      const auto first = static_cast<std::size_t>(row_of(r, on.rank()) * 2);
      for (std::size_t i = 0; i < static_cast<std::size_t>(split(r, on.rank()) * 2); ++i) {
        received.push_back(input_of(r, type)(first + i));
      }
    }
    const std::int64_t sent = row_of(on.rank(), size);
    const Ticket ticket =
        engine.all_to_all_async("exchange", on.filled(static_cast<std::size_t>(sent * 2), type, own), Shape{sent, 2},
                                even ? std::span<const std::int64_t>{} : splits, type);
    const Output output = engine.take_output(ticket);
    EXPECT_EQ(output.rows, arriving);
    expect_output("all_to_all", output, received.size(), {type, [&](std::size_t i) { return received[i]; }});
  }
  for (int root = 0; root < size; ++root) {
    std::byte* const data = on.filled(9, type, own);
    engine.wait(engine.broadcast_async("broadcast", data, Shape{9}, type, root));
    expect_values("broadcast", {data, 9 * size_of(type)}, 9, {type, input_of(root, type)});
  }
  engine.wait(engine.barrier_async("barrier"));
}

class DeviceOperations : public ::testing::TestWithParam<std::tuple<int, DataType>> {};

/// Tests every operation with every reduction. The second round uses cached responses.
TEST_P(DeviceOperations, GiveWhatTheReferenceSays) {
  const auto [size, type] = GetParam();
  expect_good(on_gpu_ranks(size,
                           {.seed = static_cast<std::uint64_t>(size) * kDataTypes + static_cast<std::uint64_t>(type)},
                           [type = type](GpuRank& rank) {
                             Tickets on(rank);
                             const bool reducible = type != DataType::kI16 || on.size() == 1;
                             for (int round = 0; round < 2; ++round) {
                               check_moves(on, type, round);
                               for (const ReduceOp op : kAllOps) {
                                 if (!reducible) continue;
                                 check_all_reduces(on, type, op, {}, "");
                                 check_reduce_scatters(on, type, op, {}, "");
                                 if (device::epsilon(type) == 0) continue;  // integers cannot be scaled by factors
                                 check_all_reduces(on, type, op, {2, 0.25}, ", scaled");
                                 check_reduce_scatters(on, type, op, {2, 0.25}, ", scaled");
                               }
                             }
                             EXPECT_GT(on.engine().cycle_stats().fast_cycles, 0U);
                           }));
}

INSTANTIATE_TEST_SUITE_P(All, DeviceOperations,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4), ::testing::ValuesIn(kAllTypes)));

/// Reduces random values with factors that cause rounding. The fake NCCL adds in the same order as the host.
std::vector<std::byte> scaled_results(Engine& engine, std::byte* data, std::size_t count, DataType type) {
  const Scale scale{1 / 3.0, 0.7};
  const Shape rows{static_cast<std::int64_t>(count)};
  write_input(data, {0, count}, type, ReduceOp::kSum, engine.rank());
  const Output share = engine.take_output(engine.reduce_scatter_async("s", data, rows, type, ReduceOp::kSum, scale));
  engine.wait(engine.all_reduce_async("a", data, rows, type, ReduceOp::kAverage, scale));
  std::vector<std::byte> all(share.data().begin(), share.data().end());
  all.insert(all.end(), data, data + count * size_of(type));
  return all;
}

TEST(DeviceTickets, ScalingGivesTheBitsOfTheHost) {
  constexpr std::size_t kCount = 333;
  for (const DataType type : {DataType::kF32, DataType::kF64, DataType::kF16, DataType::kBF16}) {
    for (const int size : {1, 2, 3}) {
      std::vector<std::vector<std::byte>> host(static_cast<std::size_t>(size));
      expect_all_good(on_ranks(size, patient_options(Schedule::kNegotiated), [&](Engine& engine, int rank) {
        std::vector<std::byte> data(kCount * size_of(type));
        host[static_cast<std::size_t>(rank)] = scaled_results(engine, data.data(), kCount, type);
      }));
      expect_good(on_gpu_ranks(size, {}, [&](GpuRank& rank) {
        Tickets on(rank);
        std::byte* const data = on.filled(kCount, type, [](std::size_t) { return 0.0; });
        EXPECT_EQ(scaled_results(on.engine(), data, kCount, type), host[static_cast<std::size_t>(rank.rank)])
            << name(type) << ", " << size << " ranks";
      }));
    }
  }
}

/// Submits all kinds of operations at once, in a different order on each rank.
TEST(DeviceTickets, MixInAnyOrder) {
  constexpr std::uint32_t kSeed = 21;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  expect_good(on_gpu_ranks(3, {}, [](GpuRank& rank) {
    constexpr std::size_t kTensors = 30;
    constexpr auto kType = DataType::kF32;
    Tickets on(rank);
    Engine& engine = on.engine();
    std::vector<std::byte*> data(kTensors);
    std::vector<Ticket> tickets(kTensors);
    const Shape shape{6};
    for (const std::size_t t : shuffled(kTensors, kSeed + static_cast<std::uint32_t>(rank.rank))) {
      std::byte* const p = data[t] = on.filled(6, kType, [&](std::size_t) { return rank.rank; });
      const std::string name = "t" + std::to_string(t);
      switch (t % 5) {
        case 0: tickets[t] = engine.all_reduce_async(name, p, shape, kType, ReduceOp::kSum, {2, 1}); break;
        case 1: tickets[t] = engine.broadcast_async(name, p, shape, kType, 2); break;
        case 2: tickets[t] = engine.all_gather_async(name, p, Shape{rank.rank}, kType); break;
        case 3: tickets[t] = engine.reduce_scatter_async(name, p, shape, kType, ReduceOp::kMax); break;
        default: tickets[t] = engine.all_to_all_async(name, p, shape, {}, kType); break;
      }
    }
    const std::vector<double> gathered{1, 2, 2}, exchanged{0, 0, 1, 1, 2, 2};
    for (std::size_t t = 0; t < kTensors; ++t) {
      const Output output = engine.take_output(tickets[t]);
      const auto expect = [&](std::size_t count, const Values& values) {
        expect_output("tensor " + std::to_string(t), output, count, {kType, values});
      };
      const auto in_place = [&](double value) {
        expect_values("tensor " + std::to_string(t), {data[t], 6 * sizeof(float)}, 6,
                      {kType, [value](std::size_t) { return value; }});
      };
      switch (t % 5) {
        case 0: in_place(6); break;
        case 1: in_place(2); break;
        case 2: expect(3, [&](std::size_t i) { return gathered[i]; }); break;
        case 3: expect(2, [](std::size_t) { return 2.0; }); break;
        default: expect(6, [&](std::size_t i) { return exchanged[i]; }); break;
      }
    }
  }));
}

/// Tests every kind of disagreement. Afterwards the engine must still work.
TEST(DeviceTickets, FailWithTheSameTextIfRanksDisagreeAndTheEngineGoesOn) {
  std::array<std::vector<std::string>, 3> texts;
  expect_good(on_gpu_ranks(3, {}, [&](GpuRank& rank) {
    Tickets on(rank);
    Engine& engine = on.engine();
    const bool odd = rank.rank == 1;
    constexpr auto kF32 = DataType::kF32;
    std::byte* const data = on.filled(12, kF32, [](std::size_t) { return 1.0; });
    std::byte* const out = on.filled(12, kF32, [](std::size_t) { return 5.0; });
    const Shape shape{12}, rows{6, 2}, other{3, 4};
    const std::array<GroupTensor, 2> group{{{data, odd ? rows : shape}, {out, shape}}};
    const auto fails = [&](Ticket ticket) {
      const std::string text = error_of([&] { return engine.take_output(ticket); });
      EXPECT_TRUE(text.starts_with("mismatch: ")) << text;
      texts.at(static_cast<std::size_t>(rank.rank)).push_back(text);
    };
    for (int round = 0; round < 2; ++round) {
      fails(odd ? engine.broadcast_async("kind", data, shape, kF32, 0)
                : engine.all_gather_async("kind", data, shape, kF32));
      fails(engine.broadcast_async("root", data, shape, kF32, odd ? 1 : 0));
      fails(engine.all_gather_async("row", data, odd ? rows : other, kF32));
      fails(engine.all_gather_async("type", data, shape, odd ? DataType::kI32 : kF32));
      fails(engine.all_to_all_async("cell", data, odd ? rows : other, {}, kF32));
      fails(engine.reduce_scatter_async("op", data, rows, kF32, odd ? ReduceOp::kMin : ReduceOp::kSum));
      fails(engine.all_reduce_async("factor", data, rows, kF32, ReduceOp::kSum, {1, odd ? 2.0 : 3.0}));
      fails(engine.all_reduce_into_async("into", out, data, odd ? rows : other, kF32, ReduceOp::kSum));
      fails(engine.grouped_all_reduce_async("group", group, kF32, ReduceOp::kSum));
    }
    expect_values("data", {data, 12 * sizeof(float)}, 12, {kF32, [](std::size_t) { return 1.0; }});
    expect_values("out", {out, 12 * sizeof(float)}, 12, {kF32, [](std::size_t) { return 5.0; }});
    const Ticket fine = engine.reduce_scatter_async("op", data, rows, kF32, ReduceOp::kSum, {2, 3});
    expect_output("afterwards", engine.take_output(fine), 4, {kF32, [](std::size_t) { return 18.0; }});
  }));
  ASSERT_EQ(texts[0].size(), 18U);
  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_EQ(texts[0], texts[2]);
}

/// Runs tickets between steps on the GPU. The tickets must not change the results of the steps.
TEST(DeviceTickets, GoBetweenTheStepsOfATraining) {
  constexpr int kSteps = 5;
  expect_good(on_gpu_ranks(3, {}, [](GpuRank& rank) {
    DeviceEngine engine(rank.connect(), small_buckets(Schedule::kStatic), {});
    Network network(rank, engine);
    const gpu::DeviceMemory memory = rank.gpu.allocate(3 * sizeof(float), "a test");
    for (std::size_t i = 0; i < 3; ++i) store_element(&memory->bytes[i * sizeof(float)], rank.rank, DataType::kF32);
    for (int step = 0; step < kSteps; ++step) {
      EXPECT_EQ(network.step().graph, step >= 2);
      Engine& plain = engine.engine();
      const Output output = plain.take_output(plain.reduce_scatter_async("loss", memory->bytes.data(), Shape{3},
                                                                         DataType::kF32, ReduceOp::kAverage, {4, 0.5}));
      expect_output("mean", output, 1, {DataType::kF32, [](std::size_t) { return 2.0; }, 1e-6});
    }
    EXPECT_EQ(network.parameters(), expected_parameters(3, kSteps, network.gradients()));
  }));
}

}  // namespace
}  // namespace hvd::test::device_operations_test
