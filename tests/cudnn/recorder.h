// Stands between the executor and the libraries that it calls: every launch is noted, with what it reads and writes,
// and put on the fake GPU's stream, where it is computed on the host when its turn comes.
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
  std::string what;  ///< "cudnn conv+statistics", "cublaslt", "own pointwise"
  std::vector<Range> reads, writes;
  bool operator==(const Call& other) const;
};

class Recorder {
 public:
  explicit Recorder(test::FakeRuntime& gpu) : gpu_(gpu) { current() = this; }
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;
  ~Recorder() { current() = nullptr; }

  /// The one that the tables below call: C functions have no other way to know.
  static Recorder*& current();

  void launch(void* stream, Call call, std::function<void()> body);
  [[nodiscard]] test::FakeRuntime& gpu() noexcept { return gpu_; }

  std::vector<Call> calls;
  /// Launches are noted and ordered, and compute nothing.
  bool dry = false;
  /// cuDNN's convolutions round their operands as tf32 does. (cuBLASLt is told so with every product.)
  bool tf32 = false;
  /// Engines of this index refuse to be finalised.
  std::int64_t broken_engine = -1;
  /// Whether an engine refuses the operations of a graph (cudnnBackendDescriptorType_t, in order) when it is finalised,
  /// or when it is executed. Null: none does.
  using Refusal = std::function<bool(std::int64_t engine, const std::vector<int>& operations)>;
  Refusal refuses_plan, refuses_launch;
  /// Bytes of workspace that engine 2 wants, and touches.
  std::size_t second_workspace = 2048;
  /// cuBLASLt has no algorithm with this epilogue.
  int refused_epilogue = -1;
  /// Whether algorithm `algorithm`, of the kProducts that the heuristics name, refuses to run with an epilogue. Null:
  /// none does.
  static constexpr int kProducts = 3;
  std::function<bool(int algorithm, int epilogue)> refuses_product;
  /// Products of so many rows or more are refused, whatever the algorithm.
  std::int64_t refused_rows = std::numeric_limits<std::int64_t>::max();
  /// Workspace that algorithm 0 asks for.
  std::size_t product_workspace = 0;

 private:
  test::FakeRuntime& gpu_;
};

/// Descriptors of the fake cuDNN that nobody has destroyed.
std::atomic<std::size_t>& fake_cudnn_objects();
/// cuDNN's backend API: keeps descriptors, and computes operation graphs with the reference's arithmetic.
Functions fake_cudnn();
/// cuBLASLt: products in double, with their epilogues.
LtFunctions fake_cublaslt();
/// Our kernels, on the host.
kernels::Table host_kernels();

}  // namespace hvd::models::cudnn::testing
