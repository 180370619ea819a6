// Sits between the executor and the libraries that the executor calls. The recorder notes every launch with the memory
// that the launch reads and writes, and enqueues it on the fake GPU's stream, which computes on the host.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "models/cudnn/execution.h"
#include "models/cudnn/linear.h"
#include "tests/gpu/fake_runtime.h"

namespace hvd::models::cudnn::testing {

using test::Range;

struct Call {
  std::string what;  ///< e.g. "cudnn conv+statistics", "cublaslt", "own pointwise"
  std::vector<Range> reads, writes;
  bool operator==(const Call& other) const;
};

class Recorder {
 public:
  explicit Recorder(test::FakeRuntime& gpu);
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;
  ~Recorder();

  /// The recorder that the function tables below call: the newest of the calling thread, or, if this thread has made
  /// none, the newest of all threads. It is static because C functions get no context pointer.
  static Recorder* current();

  void launch(void* stream, Call call, std::function<void()> body);
  [[nodiscard]] test::FakeRuntime& gpu() noexcept { return gpu_; }

  std::vector<Call> calls;
  /// If true, launches are noted and ordered but compute nothing.
  bool dry = false;
  /// If true, cuDNN's convolutions round their operands to tf32. (Each product tells cuBLASLt whether to do so.)
  bool tf32 = false;
  /// Engines with this index fail when they are finalised.
  std::int64_t broken_engine = -1;
  /// Returns whether an engine refuses a graph with these operations (cudnnBackendDescriptorType_t, in order), when the
  /// plan is finalised or when it is executed. Null: no engine refuses.
  using Refusal = std::function<bool(std::int64_t engine, const std::vector<int>& operations)>;
  Refusal refuses_plan, refuses_launch;
  /// Bytes of workspace that engine 2 asks for and writes.
  std::size_t second_workspace = 2048;
  /// Epilogue for which cuBLASLt has no algorithm. -1: none.
  int refused_epilogue = -1;
  /// Returns whether one of the heuristics' kProducts algorithms refuses to run with this epilogue. Null: none refuses.
  static constexpr int kProducts = 3;
  std::function<bool(int algorithm, int epilogue)> refuses_product;
  /// Every algorithm refuses products with at least this many rows.
  std::int64_t refused_rows = std::numeric_limits<std::int64_t>::max();
  /// Workspace in bytes that algorithm 0 asks for.
  std::size_t product_workspace = 0;

 private:
  test::FakeRuntime& gpu_;
};

/// The number of descriptors of the fake cuDNN that exist now.
std::atomic<std::size_t>& fake_cudnn_objects();
/// Returns a fake of cuDNN's backend API that computes operation graphs with the reference's arithmetic.
Functions fake_cudnn();
/// Returns a fake cuBLASLt that computes products with their epilogues in double.
LtFunctions fake_cublaslt();
/// Returns our kernels compiled for the host.
kernels::Table host_kernels();

}  // namespace hvd::models::cudnn::testing
