// Stands between the executor and the libraries that the executor calls. The recorder notes for every launch the memory
// that the launch reads and writes. It then enqueues the launch on a stream of the fake GPU, which computes on the
// host.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "models/cudnn/run/cublaslt_launcher.h"
#include "models/cudnn/run/cudnn_launch.h"
#include "tests/gpu/fake_runtime.h"

namespace hvd::models::cudnn::testing {

using test::Range;

struct Call {
  std::string what;  ///< such as "cudnn conv+statistics", "cublaslt" or "own pointwise"
  std::vector<Range> reads, writes;
  bool operator==(const Call& other) const;
};

class Recorder {
 public:
  explicit Recorder(test::FakeRuntime& gpu);
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;
  ~Recorder();

  /// Returns the recorder that the function tables below call. It is the newest recorder of the calling thread. If this
  /// thread has made none, it is the newest recorder of all threads. The function is static because C functions get no
  /// context pointer.
  static Recorder* current();

  void launch(void* stream, Call call, std::function<void()> body);
  [[nodiscard]] test::FakeRuntime& gpu() noexcept { return gpu_; }

  std::vector<Call> calls;
  /// If true, launches are noted and ordered, but they compute nothing.
  bool dry = false;
  /// If true, cuDNN's convolutions round their operands to tf32. (cuBLASLt gets this setting with each product.)
  bool tf32 = false;
  /// Engines with this index fail when they are finalised. -1: none fails.
  std::int64_t broken_engine = -1;
  /// Returns true if engine `engine` refuses a graph with these operations. The operations are values of
  /// cudnnBackendDescriptorType_t, in order. `refuses_plan` is asked when a plan is finalised, `refuses_launch` when it
  /// is executed. Null: no engine refuses.
  using Refusal = std::function<bool(std::int64_t engine, const std::vector<int>& operations)>;
  Refusal refuses_plan, refuses_launch;
  /// Bytes of workspace that engine 2 asks for and overwrites.
  std::size_t second_workspace = 2048;
  /// cuBLASLt has no algorithm for this epilogue. -1: it has algorithms for all epilogues.
  int refused_epilogue = -1;
  /// The heuristics list kProducts algorithms. `refuses_product` returns true if an algorithm refuses to run with an
  /// epilogue. Null: no algorithm refuses.
  static constexpr int kProducts = 3;
  std::function<bool(int algorithm, int epilogue)> refuses_product;
  /// Every algorithm refuses products with at least this many rows.
  std::int64_t refused_rows = std::numeric_limits<std::int64_t>::max();
  /// Bytes of workspace that algorithm 0 asks for.
  std::size_t product_workspace = 0;

 private:
  test::FakeRuntime& gpu_;
};

/// Returns the number of descriptors of the fake cuDNN that exist now.
std::atomic<std::size_t>& fake_cudnn_objects();
/// Returns a fake of cuDNN's backend API. It computes operation graphs with the arithmetic of the reference.
Functions fake_cudnn();
/// Returns a fake cuBLASLt. It computes products and their epilogues in double.
LtFunctions fake_cublaslt();
/// Returns our kernels compiled for the host.
kernels::Table host_kernels();

}  // namespace hvd::models::cudnn::testing
