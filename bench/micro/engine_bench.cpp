// Measures what the engine costs: the time of one step for a set of gradients under each schedule, and of the data
// plane alone, beside MPI_Allreduce of the same bytes. All variants are interleaved in one run, in an order drawn anew
// for every round. Gradients become ready one after another without compute between them, so the whole step is exposed.
//
//   mpirun -np 2 engine_bench                        1,000 tensors of 1 KB, 300 rounds
//   mpirun -np 2 engine_bench one                    a single number, 300 rounds
//   mpirun -np 2 engine_bench resnet101 30           a network's gradients, in the order of backward; 30 rounds
//
// A sample is the slowest rank's time of one step; ranks start together after a barrier. The program prints the median,
// its 95 % interval (order statistics, no distribution assumed), and the median divided by the median of the flat
// all-reduce. The program checks the sums of every variant and returns exit code 1 if a sum is wrong.
#include <mpi.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/philox.h"
#include "engine/comm/chunks.h"
#include "engine/runtime/engine.h"
#include "models/graph/autodiff.h"
#include "models/zoo/zoo.h"

namespace {

using namespace hvd;

struct Options {
  std::string set = "small";
  int rounds = 300;
  int warmup = 30;
};

/// Returns the element counts of the tensors, which are fp32.
std::vector<std::size_t> tensor_counts(const std::string& set) {
  if (set == "small") return std::vector<std::size_t>(1000, 256);
  if (set == "one") return {1};
  const models::Graph graph = models::differentiate(models::build_model({.model = set, .batch_size = 1}));
  std::vector<std::size_t> counts;
  for (const models::Parameter& parameter : graph.parameters) {
    counts.push_back(static_cast<std::size_t>(graph.tensor(parameter.value).shape.count()));
  }
  return counts;
}

std::vector<core::GradientInfo> lay_out(const std::vector<std::size_t>& counts) {
  std::vector<core::GradientInfo> gradients;
  std::size_t offset = 0;
  for (const std::size_t count : counts) {
    gradients.push_back({"gradient" + std::to_string(gradients.size()), offset, count});
    offset = (offset + count + 15) / 16 * 16;
  }
  return gradients;
}

/// Returns element i of rank `rank`. Sums over ranks are exact for up to 2^16 ranks.
float value(int rank, std::size_t i) { return static_cast<float>((static_cast<std::size_t>(rank) * 7 + i) % 64); }

void fill(std::span<float> data, int rank) {
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = value(rank, i);
}

/// Returns true if `data` is the sum over all ranks of elements `first`, `first` + 1, ...
bool sums(std::span<const float> data, int ranks, std::size_t first = 0) {
  for (std::size_t i = 0; i < data.size(); ++i) {
    float sum = 0;
    for (int rank = 0; rank < ranks; ++rank) sum += value(rank, first + i);
    if (data[i] != sum) return false;
  }
  return true;
}

Deadline soon() { return Deadline::after(std::chrono::seconds(60)); }

using Reduce = std::function<void(std::span<float>)>;

/// A way to reduce all tensors once.
struct Variant {
  std::string name;
  std::function<void()> fill;
  std::function<void()> step;
  std::function<bool()> correct;
  bool reduces = true;
  std::vector<double> seconds = {};
};

struct Interval {
  double median, low, high;
};

/// Returns the median and the order statistics n/2 -+ 0.98 sqrt(n), which enclose the median in 95 % of cases (normal
/// limit of the binomial).
Interval median_interval(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const auto n = static_cast<double>(samples.size());
  const auto at = [&](double place) { return samples[static_cast<std::size_t>(std::clamp(place, 0.0, n - 1))]; };
  return {at(n / 2), at(std::floor(n / 2 - 0.98 * std::sqrt(n))), at(std::ceil(n / 2 + 0.98 * std::sqrt(n)))};
}

void print(const Engine& engine, const std::string& data_plane, std::size_t tensors, std::size_t bytes,
           const std::vector<Variant>& variants) {
  std::printf("%zu tensors, %.1f MB, %d ranks, data plane %s, %s\n", tensors, static_cast<double>(bytes) / 1e6,
              engine.size(), data_plane.c_str(), engine.library().c_str());
  std::printf("%-23s %12s %25s %8s\n", "step", "median us", "95 % interval", "/ flat");
  const double flat = median_interval(variants.back().seconds).median;
  for (const Variant& variant : variants) {
    const Interval time = median_interval(variant.seconds);
    std::printf("%-23s %12.1f     [%9.1f, %9.1f] %8.3f\n", variant.name.c_str(), time.median * 1e6, time.low * 1e6,
                time.high * 1e6, time.median / flat);
  }
}

/// Returns a permutation of 0 .. count - 1 for one round, the same on every rank. Each round has a new permutation, so
/// that a variant does not always follow the same other variant.
std::vector<std::size_t> drawn_order(std::size_t count, std::uint64_t round) {
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  const Philox chance(1, round);
  for (std::size_t i = count; i > 1; --i) std::swap(order[i - 1], order[chance.block(i)[0] % i]);
  return order;
}

int run(const Options& options) {
  const auto counts = tensor_counts(options.set);
  const auto gradients = lay_out(counts);
  const std::size_t elements = gradients.back().offset + gradients.back().count;
  Engine engine(comm::make_mpi(), {});
  const auto memory = engine.allocate(elements * sizeof(float));
  const std::span<float> arena(reinterpret_cast<float*>(memory.data()), elements);
  engine.set_gradients(gradients, memory.data(), DataType::kF32, ReduceOp::kSum);

  // The variant `tickets` reduces the same bytes, but in separate allocations that are submitted by name, as a user of
  // the library does. The variant has its own engine, because the names of both engines together (2,000) do not fit
  // into one response cache of the default capacity.
  Engine ticket_engine(comm::make_mpi(), {});
  std::vector<std::vector<float>> loose;
  for (const std::size_t count : counts) loose.emplace_back(count);
  const Variant tickets{"tickets, any memory",
                        [&] {
                          for (std::vector<float>& tensor : loose) fill(tensor, engine.rank());
                        },
                        [&] {
                          std::vector<Ticket> issued;
                          issued.reserve(loose.size());
                          for (std::size_t t = 0; t < loose.size(); ++t) {
                            const std::array<std::int64_t, 1> shape{static_cast<std::int64_t>(loose[t].size())};
                            issued.push_back(ticket_engine.all_reduce_async(
                                "loose" + std::to_string(t), loose[t].data(), shape, DataType::kF32, ReduceOp::kSum));
                          }
                          for (const Ticket ticket : issued) ticket_engine.wait(ticket);
                        },
                        [&] {
                          return std::all_of(loose.begin(), loose.end(), [&](const std::vector<float>& tensor) {
                            return sums(tensor, engine.size());
                          });
                        }};

  // The other variants reduce one block of memory that holds all tensors.
  const auto on_block = [&](std::string name, std::span<float> data, std::function<void()> step, bool reduces = true) {
    const auto correct = [&engine, &gradients, data] {
      return std::all_of(gradients.begin(), gradients.end(), [&](const core::GradientInfo& gradient) {
        return sums(data.subspan(gradient.offset, gradient.count), engine.size(), gradient.offset);
      });
    };
    return Variant{std::move(name), [&engine, data] { fill(data, engine.rank()); }, std::move(step), correct, reduces};
  };
  const auto scheduled = [&](Schedule schedule) {
    const auto step = [&engine, &gradients, schedule] {
      engine.set_schedule(schedule);
      engine.begin_step();
      for (std::size_t g = 0; g < gradients.size(); ++g) engine.gradient_ready(g);
      engine.finish_step();
    };
    return on_block(std::string(name(schedule)), arena, step, schedule != Schedule::kNone);
  };
  // The engines' threads sleep during the following variants, so that MPI has one caller at a time. The data plane is
  // that of a world without an engine.
  const auto world = comm::make_mpi();
  const auto shared = world->data().allocate(elements * sizeof(float), soon());
  const std::span<float> registered(reinterpret_cast<float*>(shared->bytes().data()), elements);
  std::vector<float> plain(elements);
  const Reduce ours = [&](std::span<float> data) {
    world->data().all_reduce(data.data(), data.size(), DataType::kF32, ReduceOp::kSum, soon());
  };
  const Reduce mpi = [](std::span<float> data) {
    MPI_Allreduce(MPI_IN_PLACE, data.data(), static_cast<int>(data.size()), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  };
  const auto in_buckets = [&](const char* name, std::span<float> data, const Reduce& reduce) {
    return on_block(name, data, [data, &reduce] {
      comm::for_each_chunk(data.size(), core::BucketOptions().bucket_bytes / sizeof(float),
                           [&](comm::Range bucket) { reduce(data.subspan(bucket.begin, bucket.count)); });
    });
  };
  const auto by_tensor = [&](const char* name, const Reduce& reduce) {
    return on_block(name, plain, [&] {
      for (const core::GradientInfo& gradient : gradients) reduce({plain.data() + gradient.offset, gradient.count});
    });
  };

  std::vector<Variant> variants{scheduled(Schedule::kNegotiated),
                                scheduled(Schedule::kStatic),
                                scheduled(Schedule::kNone),
                                tickets,
                                in_buckets("data plane, registered", registered, ours),
                                in_buckets("data plane, any memory", plain, ours),
                                by_tensor("data plane by tensor", ours),
                                in_buckets("MPI_Allreduce, buckets", plain, mpi),
                                by_tensor("MPI_Allreduce by tensor", mpi),
                                on_block("one flat MPI_Allreduce", plain, [&] { mpi(plain); })};
  bool correct = true;
  for (int round = 0; round < options.warmup + options.rounds; ++round) {
    for (const std::size_t turn : drawn_order(variants.size(), static_cast<std::uint64_t>(round))) {
      Variant& variant = variants[turn];
      variant.fill();
      engine.barrier();
      const auto begin = Clock::now();
      variant.step();
      const std::chrono::duration<double> took = Clock::now() - begin;
      if (variant.reduces && round < options.warmup) correct = correct && variant.correct();
      if (round >= options.warmup) variant.seconds.push_back(took.count());
    }
  }
  for (Variant& variant : variants) {
    correct = correct && (!variant.reduces || (variant.fill(), variant.step(), variant.correct()));
    engine.all_reduce(variant.seconds.data(), variant.seconds.size(), DataType::kF64, ReduceOp::kMax);
  }
  std::int32_t wrong = correct ? 0 : 1;
  engine.all_reduce(&wrong, 1, DataType::kI32, ReduceOp::kMax);
  const std::string data_plane = engine.data_plane();
  if (engine.rank() == 0) {
    print(engine, data_plane, counts.size(), elements * sizeof(float), variants);
    std::printf("sums %s\n", wrong == 0 ? "correct" : "WRONG");
  }
  return wrong;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 3) {
    std::fprintf(stderr, "usage: mpirun -np N %s [small|one|resnet101|vgg16|inception3|...] [rounds]\n", argv[0]);
    return 2;
  }
  try {
    Options options;
    if (argc > 1) options.set = argv[1];
    if (argc > 2) options.rounds = std::max(1, std::atoi(argv[2]));
    options.warmup = std::max(2, options.rounds / 10);
    return run(options);
  } catch (const Error& error) {
    std::fprintf(stderr, "engine_bench: %s\n", error.what());
    return exit_code(error.code());
  }
}
