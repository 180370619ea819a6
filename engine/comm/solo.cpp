// One rank: every collective is the identity, so that callers need no special case for a world of one.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <new>

#include "engine/base/error.h"
#include "engine/comm/chunks.h"
#include "engine/comm/communicator.h"

namespace hvd::comm {
namespace {

class SoloControl final : public ControlPlane {
 public:
  void all_reduce_bits(std::span<std::uint64_t> /*words*/, BitOp /*op*/, Deadline /*deadline*/) override {}
  std::vector<Bytes> gather(std::span<const std::byte> message, Deadline /*deadline*/) override {
    return {Bytes(message.begin(), message.end())};
  }
  Bytes broadcast(std::span<const std::byte> message, int root, Deadline /*deadline*/) override {
    if (root != 0)
      throw Error(Errc::kInvalidArgument, "broadcast from rank " + std::to_string(root) + " in a world of 1");
    return {message.begin(), message.end()};
  }
  void barrier(Deadline /*deadline*/) override {}
  std::vector<std::optional<std::string>> roll_call(std::string_view status,
                                                    std::chrono::milliseconds /*patience*/) override {
    return {std::string(status)};
  }
  void answer_roll_call(std::string_view /*status*/) override {}
  void abort(std::string_view /*reason*/) noexcept override {}
  void throw_if_aborted() override {}
};

class PageMemory final : public RegisteredMemory {
 public:
  explicit PageMemory(std::size_t bytes) : bytes_(bytes) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t rounded = (bytes / page + 1) * page;
    if (rounded < bytes) throw Error(Errc::kOutOfMemory, "cannot allocate " + std::to_string(bytes) + " bytes");
    data_.reset(static_cast<std::byte*>(std::aligned_alloc(page, rounded)));
    if (data_ == nullptr) throw Error(Errc::kOutOfMemory, "cannot allocate " + std::to_string(bytes) + " bytes");
    std::fill_n(data_.get(), rounded, std::byte{0});
  }
  [[nodiscard]] std::span<std::byte> bytes() const override { return {data_.get(), bytes_}; }

 private:
  struct Free {
    void operator()(std::byte* p) const noexcept { std::free(p); }
  };
  std::size_t bytes_;
  std::unique_ptr<std::byte, Free> data_;
};

class SoloData final : public DataPlane {
 public:
  std::unique_ptr<RegisteredMemory> allocate(std::size_t bytes, Deadline /*deadline*/) override {
    return std::make_unique<PageMemory>(bytes);
  }
  void all_reduce(void* /*data*/, std::size_t /*count*/, DataType /*dtype*/, ReduceOp /*op*/,
                  Deadline /*deadline*/) override {}
  void reduce_scatter(void* out, const void* in, Counts counts, DataType dtype, ReduceOp /*op*/,
                      Deadline /*deadline*/) override {
    take(out, in, counts, dtype);
  }
  void all_gather(void* out, const void* in, Counts counts, DataType dtype, Deadline /*deadline*/) override {
    take(out, in, counts, dtype);
  }
  void all_to_all(void* out, Counts receive_counts, const void* in, Counts send_counts, DataType dtype,
                  Deadline /*deadline*/) override {
    check_counts("all_to_all", send_counts, 1);
    if (send_counts.front() != receive_counts.front()) {
      throw Error(Errc::kMismatch, "all_to_all: this rank sends itself " + std::to_string(send_counts.front()) +
                                       " elements and expects " + std::to_string(receive_counts.front()));
    }
    take(out, in, receive_counts, dtype);
  }
  void broadcast(void* /*data*/, std::size_t /*bytes*/, int /*root*/, Deadline /*deadline*/) override {}
  [[nodiscard]] std::string description() const override { return "none"; }

 private:
  static void take(void* out, const void* in, Counts counts, DataType dtype) {
    check_counts("a collective", counts, 1);
    if (out != in && counts.front() > 0) std::memcpy(out, in, counts.front() * size_of(dtype));
  }
};

class Solo final : public Communicator {
 public:
  Solo() {
    std::array<char, 256> host{};
    if (gethostname(host.data(), host.size() - 1) != 0) host = {"localhost"};
    topology_.hosts = {host.data()};
  }
  [[nodiscard]] const Topology& topology() const override { return topology_; }
  [[nodiscard]] ControlPlane& control() override { return control_; }
  [[nodiscard]] DataPlane& data() override { return data_; }
  [[nodiscard]] std::string_view backend() const override { return "solo"; }
  [[nodiscard]] std::string library() const override { return "none"; }

 private:
  Topology topology_;
  SoloControl control_;
  SoloData data_;
};

}  // namespace

std::unique_ptr<Communicator> make_solo() { return std::make_unique<Solo>(); }

}  // namespace hvd::comm
