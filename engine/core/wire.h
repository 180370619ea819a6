// Writes and reads the little-endian messages of the control plane. Writing cannot fail. Reading checks every length
// and value against the bytes that are left, and throws Error{kInvalidArgument}. A corrupt message never causes
// undefined behaviour or an allocation larger than the message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/request.h"

namespace hvd::core {

class WireWriter {
 public:
  void u8(std::uint8_t value) { out_.push_back(static_cast<std::byte>(value)); }
  void u32(std::uint32_t value) { little_endian(value, 4); }
  void u64(std::uint64_t value) { little_endian(value, 8); }
  /// Writes the length, then the characters.
  void text(std::string_view value);
  /// Writes the number of extents, then each extent.
  void extents(std::span<const std::int64_t> values);
  void request(const Request& value);
  /// Overwrites the u32 at byte `position`, for a count that is known only after its items are written.
  void patch_u32(std::size_t position, std::uint32_t value);
  [[nodiscard]] std::size_t size() const { return out_.size(); }
  [[nodiscard]] std::vector<std::byte> take() { return std::move(out_); }

 private:
  void little_endian(std::uint64_t value, int bytes);
  std::vector<std::byte> out_;
};

/// Reads one message. `data` must outlive the reader. `what` names the message in errors.
class WireReader {
 public:
  WireReader(std::span<const std::byte> data, std::string_view what) : data_(data), what_(what) {}

  std::uint8_t u8() { return static_cast<std::uint8_t>(little_endian(1)); }
  std::uint32_t u32() { return static_cast<std::uint32_t>(little_endian(4)); }
  std::uint64_t u64() { return little_endian(8); }
  /// Reads a count of items that take at least `item_bytes` each. Fails if the rest of the message is too short for
  /// these items. The caller may therefore allocate memory for them before reading them.
  std::uint32_t count(std::size_t item_bytes);
  /// Reads a text. The result points into the message.
  std::string_view text();
  /// Reads extents into `out` and reuses the memory of `out`. The extents may be negative.
  void extents(std::vector<std::int64_t>& out);
  /// Reads a request into `out` and reuses the memory of `out`: when a large world starts, rank 0 reads hundreds of
  /// thousands of requests.
  /// Errors: invalid_argument for an unknown type, operation or kind, and those of Request::check().
  void request(Request& out);
  /// Call after the last field. Errors: invalid_argument if bytes are left.
  void finish() const;
  [[noreturn]] void fail(std::string_view why) const;

 private:
  std::uint64_t little_endian(std::size_t bytes);
  std::span<const std::byte> data_;
  std::string_view what_;
  std::size_t at_ = 0;
};

}  // namespace hvd::core
