// A world of one rank. A collective leaves the data as it is, or copies it, so that callers need no special case.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <new>

#include "engine/base/error.h"
#include "engine/comm/arguments.h"
#include "engine/comm/chunks.h"
#include "engine/comm/communicator.h"

namespace hvd::comm {
namespace {

class SoloControl final : public ControlPlane {
 public:
  void all_reduce_bits(std::span<std::uint64_t> /*words*/, BitOp /*op*/, Deadline /*deadline*/) override {}
  std::vector<Bytes> gather(std::span<const std::byte> message, Deadline /*deadline*/) override {
    check_message("gather", message.size(), kMaxMessage);
    return {Bytes(message.begin(), message.end())};
  }
  Bytes broadcast(std::span<const std::byte> message, int root, Deadline /*deadline*/) override {
    check_root("broadcast", root, 1);
    check_message("broadcast", message.size(), kMaxMessage);
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
  void look_for_dead() override {}
};

class PageMemory final : public RegisteredMemory {
 public:
  explicit PageMemory(std::size_t bytes) : bytes_(bytes) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t rounded = (bytes / page + 1) * page;
    if (rounded > bytes) data_.reset(static_cast<std::byte*>(std::aligned_alloc(page, rounded)));
    if (data_ == nullptr) throw Error(Errc::kOutOfMemory, fmt::format("cannot allocate {} bytes", bytes));
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
  void all_reduce_into(void* out, const void* in, std::size_t count, DataType dtype, ReduceOp /*op*/,
                       Deadline /*deadline*/) override {
    copy_apart("all_reduce_into", out, in, count, dtype);
  }
  void reduce_scatter(void* out, const void* in, Counts counts, DataType dtype, ReduceOp /*op*/,
                      Deadline /*deadline*/) override {
    take("reduce_scatter", out, in, counts, dtype);
  }
  void all_gather(void* out, const void* in, Counts counts, DataType dtype, Deadline /*deadline*/) override {
    take("all_gather", out, in, counts, dtype);
  }
  void all_to_all(void* out, Counts receive_counts, const void* in, Counts send_counts, DataType dtype,
                  Deadline /*deadline*/) override {
    check_counts("all_to_all", send_counts, 1);
    check_counts("all_to_all", receive_counts, 1);
    check_own_block(0, send_counts.front(), receive_counts.front());
    copy_apart("all_to_all", out, in, send_counts.front(), dtype);
  }
  void broadcast(void* /*data*/, std::size_t /*bytes*/, int root, Deadline /*deadline*/) override {
    check_root("broadcast", root, 1);
  }
  [[nodiscard]] std::string description() const override { return "none"; }

 private:
  /// `out` may be equal to `in`, because the only share is the rank's own.
  static void take(const char* operation, void* out, const void* in, Counts counts, DataType dtype) {
    check_counts(operation, counts, 1);
    if (out != in) copy_apart(operation, out, in, counts.front(), dtype);
  }
  static void copy_apart(std::string_view operation, void* out, const void* in, std::size_t count, DataType dtype) {
    const std::size_t bytes = buffer_bytes(operation, count, dtype);
    auto* const to = static_cast<std::byte*>(out);
    const auto* const from = static_cast<const std::byte*>(in);
    check_apart(operation, {to, bytes}, {from, bytes});
    copy_bytes(to, from, bytes);
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
