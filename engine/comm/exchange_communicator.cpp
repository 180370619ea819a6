#include "engine/comm/exchange_communicator.h"

#include <cstring>

#include "engine/base/error.h"
#include "engine/comm/reduce.h"

namespace hvd::comm {
namespace {

class Memory final : public RegisteredMemory {
 public:
  explicit Memory(std::size_t bytes) : storage_(bytes + 4096) {
    const auto address = reinterpret_cast<std::uintptr_t>(storage_.data());
    begin_ = reinterpret_cast<std::byte*>((address + 4095) / 4096 * 4096);
    bytes_ = bytes;
  }
  [[nodiscard]] std::span<std::byte> bytes() const override { return {begin_, bytes_}; }

 private:
  std::vector<std::byte> storage_;
  std::byte* begin_;
  std::size_t bytes_;
};

class Plain final : public Communicator, public ControlPlane, public DataPlane {
 public:
  Plain(std::unique_ptr<Exchange> exchange, Topology topology, std::string backend, std::string library)
      : exchange_(std::move(exchange)),
        topology_(std::move(topology)),
        backend_(std::move(backend)),
        library_(std::move(library)) {}
  [[nodiscard]] const Topology& topology() const override { return topology_; }
  [[nodiscard]] ControlPlane& control() override { return *this; }
  [[nodiscard]] DataPlane& data() override { return *this; }
  [[nodiscard]] std::string_view backend() const override { return backend_; }
  [[nodiscard]] std::string library() const override { return library_; }

  void all_reduce_bits(std::span<std::uint64_t> words, BitOp op, Deadline deadline) override {
    const auto all = exchange_->exchange(std::as_bytes(words), deadline);
    for (const Bytes& other : all) {
      for (std::size_t i = 0; i < words.size(); ++i) {
        std::uint64_t word = 0;
        std::memcpy(&word, other.data() + i * sizeof word, sizeof word);
        words[i] = op == BitOp::kAnd ? words[i] & word : words[i] | word;
      }
    }
  }
  std::vector<Bytes> gather(std::span<const std::byte> message, Deadline deadline) override {
    auto all = exchange_->exchange(message, deadline);
    if (topology_.rank != 0) all.clear();
    return all;
  }
  Bytes broadcast(std::span<const std::byte> message, int root, Deadline deadline) override {
    const auto mine = topology_.rank == root ? message : std::span<const std::byte>{};
    return exchange_->exchange(mine, deadline)[static_cast<std::size_t>(root)];
  }
  void barrier(Deadline deadline) override { exchange_->exchange({}, deadline); }
  std::vector<std::optional<std::string>> roll_call(std::string_view status,
                                                    std::chrono::milliseconds /*patience*/) override {
    std::vector<std::optional<std::string>> result(static_cast<std::size_t>(topology_.size));
    result[static_cast<std::size_t>(topology_.rank)] = status;
    return result;
  }
  void answer_roll_call(std::string_view /*status*/) override {}
  void abort(std::string_view reason) noexcept override { exchange_->abort(reason); }

  std::unique_ptr<RegisteredMemory> allocate(std::size_t bytes, Deadline deadline) override {
    barrier(deadline);
    return std::make_unique<Memory>(bytes);
  }
  void all_reduce(void* data, std::size_t count, DataType dtype, ReduceOp op, Deadline deadline) override {
    const std::span<std::byte> mine(static_cast<std::byte*>(data), count * size_of(dtype));
    const auto all = exchange_->exchange(mine, deadline);
    std::vector<const std::byte*> inputs;
    for (const Bytes& other : all) inputs.push_back(other.data());
    std::byte* out = mine.data();
    reduce_many(inputs, {&out, 1}, count, dtype, op, op == ReduceOp::kAverage ? topology_.size : 1);
  }
  void broadcast(void* data, std::size_t bytes, int root, Deadline deadline) override {
    const Bytes result = broadcast(std::span<const std::byte>(static_cast<std::byte*>(data), bytes), root, deadline);
    std::memcpy(data, result.data(), bytes);
  }
  [[nodiscard]] std::string description() const override { return "exchange"; }

 private:
  std::unique_ptr<Exchange> exchange_;
  Topology topology_;
  std::string backend_;
  std::string library_;
};

}  // namespace

std::unique_ptr<Communicator> make_exchange_communicator(std::unique_ptr<Exchange> exchange, Topology topology,
                                                         std::string backend, std::string library) {
  return std::make_unique<Plain>(std::move(exchange), std::move(topology), std::move(backend), std::move(library));
}

}  // namespace hvd::comm
