// Replaces NCCL in tests of two ranks on one GPU, because NCCL before 2.30 refuses two ranks on one GPU. SharedGpu
// reduces device memory of the ranks through CUDA IPC and the host: every rank copies the memory of all ranks and adds
// the copies in rank order.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/gpu/runtime.h"

namespace hvd::test {

/// Collective and a barrier: every rank gives a message of the same length and gets all messages, in rank order.
using Exchange = std::function<std::vector<comm::Bytes>(std::span<const std::byte>, Deadline)>;
Exchange exchange_over(comm::Communicator& host);

/// Gives ranks access to one another's device memory. Used by one thread.
class PeerMemory {
 public:
  virtual ~PeerMemory() = default;
  /// Returns bytes that a peer can pass to open(). `memory` must be a whole allocation.
  [[nodiscard]] virtual comm::Bytes show(std::span<std::byte> memory) = 0;
  /// Returns the address of the peer's memory in this process, valid until close().
  [[nodiscard]] virtual const std::byte* open(const comm::Bytes& shown) = 0;
  virtual void close(const std::byte* memory) noexcept = 0;
};
/// Makes a PeerMemory for ranks that are threads of one process, where all ranks have the same addresses.
std::unique_ptr<PeerMemory> make_same_process_memory();
/// Makes a PeerMemory for ranks that are processes on the GPU of `runtime`. Errors of this function and of the object's
/// methods: unsupported without CUDA; backend with CUDA's reason. Source: CUDA Runtime API, cudaIpcGetMemHandle.
std::unique_ptr<PeerMemory> make_cuda_ipc(gpu::GpuRuntime& runtime);

class SharedGpu {
 public:
  struct Place {
    int rank = 0, size = 1;
  };
  /// Borrows `runtime` and `peers`.
  SharedGpu(Place place, gpu::GpuRuntime& runtime, PeerMemory& peers, Exchange exchange);

  /// Collective, in place. `memory` is a whole allocation of `dtype` elements whose writes have finished. Returns when
  /// `memory` holds the result. Errors: those of PeerMemory, the exchange and the GpuRuntime; timeout.
  void all_reduce(std::span<std::byte> memory, DataType dtype, ReduceOp op, Deadline deadline);

 private:
  const Place place_;
  gpu::GpuRuntime& runtime_;
  PeerMemory& peers_;
  const Exchange exchange_;
  gpu::Stream stream_;
};

}  // namespace hvd::test
