#include "engine/core/wire.h"

#include <fmt/format.h>

#include <array>
#include <bit>

#include "engine/base/error.h"

namespace hvd::core {
namespace {

// Flag in the kind byte of a request: two scale factors follow the shape.
constexpr std::uint8_t kScaled = 0x40;

}  // namespace

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
  const bool scaled = value.terms.prescale != 1 || value.terms.postscale != 1;
  u8(static_cast<std::uint8_t>(static_cast<unsigned>(value.terms.kind) | (scaled ? kScaled : 0U)));
  extents(value.shape);
  if (value.terms.kind == Collective::kBroadcast) u32(static_cast<std::uint32_t>(value.terms.root));
  if (scaled) {
    u64(std::bit_cast<std::uint64_t>(value.terms.prescale));
    u64(std::bit_cast<std::uint64_t>(value.terms.postscale));
  }
}

void WireWriter::extents(std::span<const std::int64_t> values) {
  u32(static_cast<std::uint32_t>(values.size()));
  for (const std::int64_t value : values) u64(static_cast<std::uint64_t>(value));
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
  const std::uint8_t flags = u8();
  const auto kind = static_cast<std::uint8_t>(flags & ~kScaled);
  if (dtype >= kDataTypes) fail("unknown data type " + std::to_string(dtype));
  if (op >= kReduceOps) fail("unknown operation " + std::to_string(op));
  if (kind >= kCollectives) fail("unknown kind " + std::to_string(kind));
  out.dtype = static_cast<DataType>(dtype);
  out.op = static_cast<ReduceOp>(op);
  out.terms = {static_cast<Collective>(kind)};
  extents(out.shape);
  if (out.terms.kind == Collective::kBroadcast) out.terms.root = static_cast<std::int32_t>(u32());
  if ((flags & kScaled) != 0) {
    out.terms.prescale = std::bit_cast<double>(u64());
    out.terms.postscale = std::bit_cast<double>(u64());
  }
  out.check();
}

void WireReader::extents(std::vector<std::int64_t>& out) {
  const std::uint32_t values = count(8);
  out.clear();
  for (std::uint32_t i = 0; i < values; ++i) out.push_back(static_cast<std::int64_t>(u64()));
}

void WireReader::finish() const {
  if (at_ != data_.size()) fail(std::to_string(data_.size() - at_) + " bytes too many");
}

void WireReader::fail(std::string_view why) const {
  throw Error(Errc::kInvalidArgument, fmt::format("{} is corrupt at byte {} of {}: {}", what_, at_, data_.size(), why));
}

}  // namespace hvd::core
