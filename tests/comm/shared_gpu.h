// Two ranks on one GPU, which NCCL refuses before 2.30: their device memory is reduced through CUDA IPC and the host. A
// test double, slow and plain: every rank reads everybody's memory and sums it in rank order.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/gpu/runtime.h"

namespace hvd::test {

/// Collective: every rank gives a message of the same length and gets all of them, [rank]. Also a barrier.
using Exchange = std::function<std::vector<comm::Bytes>(std::span<const std::byte>, Deadline)>;
Exchange exchange_over(comm::Communicator& host);

/// How a rank lets another one at its device memory. One thread.
class PeerMemory {
 public:
  virtual ~PeerMemory() = default;
  /// Bytes that open() of a peer understands. `memory` is a whole allocation.
  [[nodiscard]] virtual comm::Bytes show(std::span<std::byte> memory) = 0;
  /// Where the peer's memory is here, until close().
  [[nodiscard]] virtual const std::byte* open(const comm::Bytes& shown) = 0;
  virtual void close(const std::byte* memory) noexcept = 0;
};
/// Of ranks that are threads of one process: addresses are the same.
std::unique_ptr<PeerMemory> make_same_process_memory();
/// Of ranks that are processes on the GPU of `runtime`. Errors, also of its methods: unsupported without CUDA; backend
/// with CUDA's reason. Source: CUDA Runtime API, cudaIpcGetMemHandle.
std::unique_ptr<PeerMemory> make_cuda_ipc(gpu::Runtime& runtime);

class SharedGpu {
 public:
  struct Place {
    int rank = 0, size = 1;
  };
  /// Borrows `runtime` and `peers`.
  SharedGpu(Place place, gpu::Runtime& runtime, PeerMemory& peers, Exchange exchange);

  /// Collective, in place: `memory` is a whole allocation of `dtype` elements; what wrote it is over. Returns when it
  /// is reduced here. Errors: those of PeerMemory, the exchange and the Runtime; timeout.
  void all_reduce(std::span<std::byte> memory, DataType dtype, ReduceOp op, Deadline deadline);

 private:
  const Place place_;
  gpu::Runtime& runtime_;
  PeerMemory& peers_;
  const Exchange exchange_;
  gpu::Stream stream_;
};

}  // namespace hvd::test
