// Compares the engine's all-reduce with one flat MPI_Allreduce of the same bytes, on the gradient sets of
// ResNet-101 and VGG-16. Run it under mpirun:
//
//   mpirun -np 2 build/release/bin/allreduce_bench [repetitions]
//
// The program interleaves the methods (A B C D, A B C D, ...), so that a noisy machine disturbs all methods alike.
// For each method the program prints the median over repetitions of the slowest rank's time, an order-statistics
// interval of this median, and the median over repetitions of the ratio to the flat call in the same repetition. Every
// element of every result is checked.
#include <mpi.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/comm/chunks.h"
#include "engine/comm/communicator.h"

namespace {

using hvd::Clock;
using hvd::Deadline;
using hvd::comm::Communicator;

constexpr std::size_t kBucketElements = (std::size_t{25} << 20) / sizeof(float);
constexpr std::size_t kSmallMessages = 1000;
constexpr std::size_t kSmallElements = 256;  // 1 KiB

struct Problem {
  const char* name;
  std::size_t count;
};
// Parameter counts from models/zoo; they equal torchvision's published figures.
constexpr std::array<Problem, 2> kProblems{{{"ResNet-101", 44549160}, {"VGG-16", 138357544}}};

Deadline soon() { return Deadline::after(std::chrono::seconds(60)); }

/// Input of element i: exact in fp32, and different on every rank.
float value(int rank, std::size_t i) { return static_cast<float>((i % 1021) * static_cast<std::size_t>(rank + 1)); }

void fill(std::span<float> data, int rank) {
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = value(rank, i);
}

void check_sum(std::span<const float> data, int size, const std::string& what) {
  const float factor = static_cast<float>(size * (size + 1) / 2);
  for (std::size_t i = 0; i < data.size(); ++i) {
    if (data[i] != static_cast<float>(i % 1021) * factor) {
      throw hvd::Error(hvd::Errc::kCheckFailed, what + ": element " + std::to_string(i) + " is wrong");
    }
  }
}

struct Method {
  std::string name;
  std::span<float> data;
  std::function<void(std::span<float>)> reduce;
  std::vector<double> milliseconds;
};

double slowest(double mine) {
  double result = 0;
  MPI_Allreduce(&mine, &result, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return result;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/// Returns the order statistics n/2 -+ 0.98 sqrt(n). They enclose the median in about 95 % of cases.
std::array<double, 2> interval(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto n = static_cast<double>(values.size());
  const double reach = 0.98 * std::sqrt(n);
  const auto low = static_cast<std::size_t>(std::max(0.0, std::floor(n / 2 - reach)));
  const auto high = static_cast<std::size_t>(std::min(n - 1, std::ceil(n / 2 + reach) - 1));
  return {values[low], values[high]};
}

void measure(Communicator& comm, std::vector<Method>& methods, int repetitions, const char* title) {
  const int rank = comm.topology().rank;
  const int size = comm.topology().size;
  for (int repetition = -1; repetition < repetitions; ++repetition) {  // repetition -1 warms up
    for (Method& method : methods) {
      fill(method.data, rank);
      MPI_Barrier(MPI_COMM_WORLD);
      const auto start = Clock::now();
      method.reduce(method.data);
      const double elapsed = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
      check_sum(method.data, size, method.name);
      const double worst = slowest(elapsed);
      if (repetition >= 0) method.milliseconds.push_back(worst);
    }
  }
  if (rank != 0) return;
  std::printf("%s, %d ranks, %d repetitions, %s\n", title, size, repetitions, comm.data().description().c_str());
  for (const Method& method : methods) {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < method.milliseconds.size(); ++i) {
      ratios.push_back(method.milliseconds[i] / methods.front().milliseconds[i]);
    }
    const auto around = interval(method.milliseconds);
    std::printf("  %-44s %8.2f ms  [%8.2f, %8.2f]   ratio %.2f\n", method.name.c_str(), median(method.milliseconds),
                around[0], around[1], median(ratios));
  }
  std::fflush(stdout);
}

void buckets(Communicator& comm, std::span<float> data) {
  hvd::comm::for_each_chunk(data.size(), kBucketElements, [&](hvd::comm::Range range) {
    comm.data().all_reduce(data.data() + range.begin, range.count, hvd::DataType::kF32, hvd::ReduceOp::kSum, soon());
  });
}

void flat_mpi(std::span<float> data) {
  MPI_Allreduce(MPI_IN_PLACE, data.data(), static_cast<int>(data.size()), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

void gradient_set(Communicator& comm, const Problem& problem, int repetitions) {
  std::vector<float> for_mpi(problem.count);
  std::vector<float> plain(problem.count);
  const auto memory = comm.data().allocate(problem.count * sizeof(float), soon());
  const std::span<float> registered(reinterpret_cast<float*>(memory->bytes().data()), problem.count);
  std::vector<Method> methods{
      {"flat MPI_Allreduce", for_mpi, flat_mpi, {}},
      {"ours, 25 MiB buckets, registered", registered, [&](std::span<float> d) { buckets(comm, d); }, {}},
      {"ours, 25 MiB buckets, any memory", plain, [&](std::span<float> d) { buckets(comm, d); }, {}},
      {"MPI_Allreduce, 25 MiB buckets",
       for_mpi,
       [](std::span<float> d) {
         hvd::comm::for_each_chunk(d.size(), kBucketElements,
                                   [&](hvd::comm::Range r) { flat_mpi(d.subspan(r.begin, r.count)); });
       },
       {}}};
  measure(comm, methods, repetitions, problem.name);
}

void small_messages(Communicator& comm, int repetitions) {
  std::vector<float> for_mpi(kSmallMessages * kSmallElements);
  std::vector<float> plain(for_mpi.size());
  std::vector<Method> methods{{"one flat MPI_Allreduce of 1,000 x 1 KiB", for_mpi, flat_mpi, {}},
                              {"1,000 MPI_Allreduce",
                               for_mpi,
                               [](std::span<float> d) {
                                 for (std::size_t i = 0; i < kSmallMessages; ++i)
                                   flat_mpi(d.subspan(i * kSmallElements, kSmallElements));
                               },
                               {}},
                              {"ours, 1,000 calls",
                               plain,
                               [&](std::span<float> d) {
                                 for (std::size_t i = 0; i < kSmallMessages; ++i) {
                                   comm.data().all_reduce(d.data() + i * kSmallElements, kSmallElements,
                                                          hvd::DataType::kF32, hvd::ReduceOp::kSum, soon());
                                 }
                               },
                               {}},
                              {"ours, one call", plain, [&](std::span<float> d) { buckets(comm, d); }, {}}};
  measure(comm, methods, repetitions, "1,000 x 1 KiB");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const auto comm = hvd::comm::make_mpi();
    const int repetitions = argc > 1 ? std::max(1, std::atoi(argv[1])) : 11;
    for (const Problem& problem : kProblems) gradient_set(*comm, problem, repetitions);
    small_messages(*comm, 10 * repetitions);
    return 0;
  } catch (const hvd::Error& error) {
    std::fprintf(stderr, "allreduce_bench: %s\n", error.what());
    return hvd::exit_code(error.code());
  }
}
