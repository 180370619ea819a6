// Stands between the executor and the libraries that it calls: every launch is noted, with what it reads and writes,
// and put on the fake GPU's stream, where it is computed on the host when its turn comes.
#pragma once

#include <functional>
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

  std::vector<Call> calls;
  /// Launches are noted and ordered, and compute nothing.
  bool dry = false;
  /// Engines of this index refuse to be finalised.
  std::int64_t broken_engine = -1;
  /// cuBLASLt has no algorithm with this epilogue.
  int refused_epilogue = -1;

 private:
  test::FakeRuntime& gpu_;
};

/// cuDNN's backend API: keeps descriptors, and computes operation graphs with the reference's arithmetic.
Functions fake_cudnn();
/// cuBLASLt: products in double, with their epilogues.
LtFunctions fake_cublaslt();
/// Our kernels, on the host.
kernels::Table host_kernels();

}  // namespace hvd::models::cudnn::testing
