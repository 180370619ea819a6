#include "tests/comm/shared_gpu.h"

#include <cstring>
#include <utility>

#include "engine/comm/reduce.h"

namespace hvd::test {
namespace {

class SameProcess final : public PeerMemory {
 public:
  [[nodiscard]] comm::Bytes show(std::span<std::byte> memory) override {
    const std::byte* const address = memory.data();
    comm::Bytes shown(sizeof address);
    std::memcpy(shown.data(), &address, sizeof address);
    return shown;
  }
  [[nodiscard]] const std::byte* open(const comm::Bytes& shown) override {
    const std::byte* address = nullptr;
    std::memcpy(&address, shown.data(), sizeof address);
    return address;
  }
  void close(const std::byte* /*memory*/) noexcept override {}
};

/// Opens a peer's memory and closes it in the destructor, even after an error.
class Opened {
 public:
  Opened(PeerMemory& peers, const comm::Bytes& shown) : peers_(peers), memory_(peers.open(shown)) {}
  ~Opened() { peers_.close(memory_); }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;
  [[nodiscard]] const std::byte* get() const { return memory_; }

 private:
  PeerMemory& peers_;
  const std::byte* memory_;
};

}  // namespace

std::unique_ptr<PeerMemory> make_same_process_memory() { return std::make_unique<SameProcess>(); }

Exchange exchange_over(comm::Communicator& host) {
  return [&host](std::span<const std::byte> message, Deadline deadline) {
    comm::Bytes joined;
    for (const comm::Bytes& part : host.control().gather(message, deadline)) {
      joined.insert(joined.end(), part.begin(), part.end());
    }
    joined = host.control().broadcast(joined, 0, deadline);
    std::vector<comm::Bytes> all;
    for (std::size_t rank = 0; rank < static_cast<std::size_t>(host.topology().size); ++rank) {
      const auto begin = joined.begin() + static_cast<std::ptrdiff_t>(rank * message.size());
      all.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(message.size()));
    }
    return all;
  };
}

SharedGpu::SharedGpu(Place place, gpu::GpuRuntime& runtime, PeerMemory& peers, Exchange exchange)
    : place_(place),
      runtime_(runtime),
      peers_(peers),
      exchange_(std::move(exchange)),
      stream_(runtime.make_stream(gpu::Priority::kNormal)) {}

void SharedGpu::all_reduce(std::span<std::byte> memory, DataType dtype, ReduceOp op, Deadline deadline) {
  runtime_.make_current();
  const std::vector<comm::Bytes> shown = exchange_(peers_.show(memory), deadline);  // now all ranks have written
  const auto size = static_cast<std::size_t>(place_.size);
  const gpu::PinnedMemory host = runtime_.allocate_pinned(size * memory.size(), "everybody's gradients");
  std::vector<const std::byte*> inputs;
  for (std::size_t rank = 0; rank < size; ++rank) {
    std::byte* const copy = host->bytes.data() + rank * memory.size();
    inputs.push_back(copy);
    const bool mine = rank == static_cast<std::size_t>(place_.rank);
    const auto peer = mine ? nullptr : std::make_unique<Opened>(peers_, shown[rank]);
    runtime_.copy(copy, mine ? memory.data() : peer->get(), memory.size(), stream_);
    runtime_.synchronize(stream_.view(), deadline, "reading the memory of rank " + std::to_string(rank));
  }
  static_cast<void>(exchange_({}, deadline));  // a barrier: now all ranks have read
  std::byte* const result = host->bytes.data();
  comm::reduce_many(inputs, std::span<std::byte* const>(&result, 1), memory.size() / size_of(dtype), dtype, op,
                    op == ReduceOp::kAverage ? place_.size : 1);
  runtime_.copy(memory.data(), result, memory.size(), stream_);
  runtime_.synchronize(stream_.view(), deadline, "writing the sums");
}

}  // namespace hvd::test
