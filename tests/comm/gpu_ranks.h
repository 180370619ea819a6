// Runs N ranks as threads of the test. Each rank has a fake GPU and a fake NCCL over a loopback communicator.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/comm/device_communicator.h"
#include "tests/base/elements.h"
#include "tests/base/threads.h"
#include "tests/comm/fake_nccl.h"
#include "tests/comm/loopback_world.h"

namespace hvd::test {

struct GpuWorldOptions {
  std::uint64_t seed = 1;
  std::vector<FakeNcclOptions> nccl = {};  ///< [rank]; ranks beyond the vector's end get the default
  std::vector<std::string> uuids = {};     ///< [rank]; ranks beyond the vector's end get a uuid of their own
  comm::NcclOptions communicator = {};
  int ranks_per_node = 0;          ///< if > 0: this many consecutive ranks pretend to be a node
  KillableWorld* world = nullptr;  ///< of as many ranks, all on one node; null: a world whose ranks cannot be killed
  std::chrono::milliseconds deadline{20000};
};

/// The arguments of a rank's body. The body may turn `host` into a DeviceCommunicator with connect().
struct GpuRank {
  int rank = 0;
  FakeRuntime& gpu;
  std::shared_ptr<FakeNccl> nccl;
  std::unique_ptr<comm::Communicator> host;
  const GpuWorldOptions& options;
  FakeNcclHub& hub;

  std::unique_ptr<comm::DeviceCommunicator> connect() {
    return comm::make_nccl(std::move(host), gpu, nccl, options.communicator, Deadline::after(options.deadline));
  }
};

struct GpuOutcome {
  std::vector<std::string> errors;      ///< [rank] "code: text"; empty if the rank ended well
  std::vector<std::string> violations;  ///< faults that the fake GPUs and the fake NCCL reported
  std::vector<std::string> log;         ///< the fake NCCL's log
  int wait_timed_out = 0;               ///< number of aborts that had not returned at the end
  std::uint64_t seed = 0;
  [[nodiscard]] std::string text() const {
    std::string all;
    for (const auto* lines : {&errors, &violations, &log}) {
      for (const std::string& line : *lines) all += line.empty() ? "" : line + "\n";
    }
    return all;
  }
  /// Returns true if no rank failed and no fault was reported.
  [[nodiscard]] bool good() const {
    return violations.empty() && wait_timed_out == 0 &&
           std::all_of(errors.begin(), errors.end(), [](const std::string& error) { return error.empty(); });
  }
};

inline GpuOutcome on_gpu_ranks(int size, const GpuWorldOptions& options, const std::function<void(GpuRank&)>& body) {
  FakeWorld world(options.seed);
  FakeNcclHub hub(world);
  std::vector<std::unique_ptr<comm::Communicator>> hosts;
  if (size == 1) {
    hosts.push_back(comm::make_solo());
  } else {
    hosts = options.world != nullptr ? options.world->communicators()
                                     : comm::make_loopback(size, {}, options.ranks_per_node);
  }
  GpuOutcome outcome;
  outcome.seed = options.seed;
  outcome.errors.resize(static_cast<std::size_t>(size));
  {
    std::vector<std::unique_ptr<FakeRuntime>> gpus;
    for (std::size_t r = 0; r < hosts.size(); ++r) {
      FakeOptions fake;
      if (r < options.uuids.size()) fake.uuid = options.uuids[r];
      gpus.push_back(std::make_unique<FakeRuntime>(world, static_cast<int>(r), fake));
    }
    std::vector<std::weak_ptr<FakeNccl>> libraries(hosts.size());
    on_threads(hosts.size(), [&](std::size_t r) {
      const FakeNcclOptions its = r < options.nccl.size() ? options.nccl[r] : FakeNcclOptions{};
      GpuRank rank{static_cast<int>(r), *gpus[r], std::make_shared<FakeNccl>(hub, *gpus[r], its),
                   std::move(hosts[r]), options,  hub};
      libraries[r] = rank.nccl;
      try {
        body(rank);
      } catch (const Error& error) {
        outcome.errors[r] = std::string(name(error.code())) + ": " + error.what();
      }
    });
    outcome.wait_timed_out = hub.end(libraries);
    outcome.log = hub.log();
  }
  outcome.violations = world.violations();
  return outcome;
}

inline void expect_good(const GpuOutcome& outcome) {
  EXPECT_TRUE(outcome.good()) << "seed " << outcome.seed << "\n" << outcome.text().substr(0, 3000);
}

/// Runs `body` on ranks that are connected. Expects that no rank fails and that the fakes report no fault.
inline GpuOutcome on_connected_ranks(int size, const GpuWorldOptions& options,
                                     const std::function<void(GpuRank&, comm::DeviceCommunicator&)>& body) {
  GpuOutcome outcome = on_gpu_ranks(size, options, [&](GpuRank& rank) {
    const auto communicator = rank.connect();
    body(rank, *communicator);
  });
  expect_good(outcome);
  return outcome;
}

/// Returns the number of lines in the fake NCCL's log that begin with `what`.
[[nodiscard]] inline std::ptrdiff_t logged(const GpuOutcome& outcome, const std::string& what) {
  return std::count_if(outcome.log.begin(), outcome.log.end(),
                       [&](const auto& line) { return line.starts_with(what); });
}

/// Returns the NCCL operations that `rank` began, in order. The first operation is the trial reduction at start-up.
[[nodiscard]] inline std::vector<std::string> begun(const GpuOutcome& outcome, int rank) {
  const std::string prefix = "rank " + std::to_string(rank) + " begins ";
  std::vector<std::string> lines;
  for (const std::string& line : outcome.log) {
    if (line.starts_with(prefix)) lines.push_back(line.substr(prefix.size()));
  }
  return lines;
}

/// Returns small integers, whose sums and means over four ranks are exact in all types.
inline double exact_value(int rank, std::size_t i) { return static_cast<int>(i % 9) - 4 * rank; }

/// Fills device memory with a fake kernel on `stream`.
inline void produce(FakeRuntime& gpu, std::span<std::byte> memory, DataType type, gpu::StreamView stream,
                    const std::function<double(std::size_t)>& value) {
  gpu.kernel(stream, "produce", {}, {memory}, [memory, type, value] {
    const std::size_t element = size_of(type);
    for (std::size_t i = 0; i < memory.size() / element; ++i) store_element(&memory[i * element], value(i), type);
  });
}
inline void produce(GpuRank& rank, std::span<std::byte> memory, DataType type, gpu::StreamView stream) {
  produce(rank.gpu, memory, type, stream, [r = rank.rank](std::size_t i) { return exact_value(r, i); });
}

/// Expects in `memory` the sum or the mean of exact_value() over `size` ranks.
inline void expect_reduced(std::span<const std::byte> memory, int size, DataType type, ReduceOp op = ReduceOp::kSum) {
  const std::size_t count = memory.size() / size_of(type);
  for (std::size_t i = 0; i < count; ++i) {
    double expected = 0;
    for (int r = 0; r < size; ++r) expected += exact_value(r, i);
    if (op == ReduceOp::kAverage) expected /= size;
    ASSERT_EQ(load_element(&memory[i * size_of(type)], type), expected) << "element " << i << " of " << count;
  }
}

}  // namespace hvd::test
