#include "engine/core/wire.h"

#include <array>

#include "engine/base/error.h"

namespace hvd::core {

void WireWriter::little_endian(std::uint64_t value, int bytes) {
  std::array<std::byte, 8> buffer{};
  for (std::size_t i = 0; i < buffer.size(); ++i) buffer[i] = static_cast<std::byte>(value >> (8 * i));
  out_.insert(out_.end(), buffer.begin(), buffer.begin() + bytes);
}

void WireWriter::text(std::string_view value) {
  u32(static_cast<std::uint32_t>(value.size()));
  const auto bytes = std::as_bytes(std::span(value.data(), value.size()));
  out_.insert(out_.end(), bytes.begin(), bytes.end());
}

void WireWriter::request(const Request& value) {
  text(value.name);
  u8(static_cast<std::uint8_t>(value.dtype));
  u8(static_cast<std::uint8_t>(value.op));
  u32(static_cast<std::uint32_t>(value.shape.size()));
  for (const std::int64_t extent : value.shape) u64(static_cast<std::uint64_t>(extent));
}

void WireWriter::patch_u32(std::size_t position, std::uint32_t value) {
  for (std::size_t i = 0; i < 4; ++i) out_.at(position + i) = static_cast<std::byte>(value >> (8 * i));
}

std::uint64_t WireReader::little_endian(std::size_t bytes) {
  if (data_.size() - at_ < bytes) fail("it is truncated");
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < bytes; ++i) value |= static_cast<std::uint64_t>(data_[at_ + i]) << (8 * i);
  at_ += bytes;
  return value;
}

std::uint32_t WireReader::count(std::size_t item_bytes) {
  const std::uint32_t items = u32();
  if (items > (data_.size() - at_) / item_bytes) fail("it is truncated");
  return items;
}

std::string_view WireReader::text() {
  const std::size_t length = count(1);
  const auto* start = reinterpret_cast<const char*>(data_.data() + at_);
  at_ += length;
  return {start, length};
}

void WireReader::request(Request& out) {
  out.name = text();
  const std::uint8_t dtype = u8();
  const std::uint8_t op = u8();
  if (dtype > static_cast<std::uint8_t>(DataType::kU8)) fail("unknown data type " + std::to_string(dtype));
  if (op > static_cast<std::uint8_t>(ReduceOp::kMax)) fail("unknown operation " + std::to_string(op));
  out.dtype = static_cast<DataType>(dtype);
  out.op = static_cast<ReduceOp>(op);
  const std::uint32_t dimensions = count(8);
  out.shape.clear();
  for (std::uint32_t i = 0; i < dimensions; ++i) out.shape.push_back(static_cast<std::int64_t>(u64()));
  static_cast<void>(out.bytes());  // throws where the shape makes no sense
}

void WireReader::finish() const {
  if (at_ != data_.size()) fail(std::to_string(data_.size() - at_) + " bytes too many");
}

void WireReader::fail(std::string_view why) const {
  throw Error(Errc::kInvalidArgument, std::string(what_) + " is corrupt at byte " + std::to_string(at_) + " of " +
                                          std::to_string(data_.size()) + ": " + std::string(why));
}

}  // namespace hvd::core
