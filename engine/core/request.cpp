#include "engine/core/request.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/base/error.h"

namespace hvd::core {
namespace {

// The largest element has 8 bytes: with this limit on the count, bytes() cannot overflow either.
constexpr std::size_t kLargest = std::numeric_limits<std::size_t>::max() / 8;

[[noreturn]] void too_many(std::string_view name, const std::string& shape) {
  throw Error(Errc::kInvalidArgument,
              fmt::format("tensor '{}': shape {} has more elements than 64 bits can count", name, shape));
}

bool scalable(DataType type) {
  return type == DataType::kF32 || type == DataType::kF64 || type == DataType::kF16 || type == DataType::kBF16;
}

}  // namespace

std::string_view name(Collective kind) noexcept {
  switch (kind) {
    case Collective::kAllReduce: return "all_reduce";
    case Collective::kGroupedAllReduce: return "grouped_all_reduce";
    case Collective::kAllGather: return "all_gather";
    case Collective::kReduceScatter: return "reduce_scatter";
    case Collective::kBroadcast: return "broadcast";
    case Collective::kAllToAll: return "all_to_all";
    case Collective::kBarrier: return "barrier";
  }
  return "unknown";
}

std::string to_text(const std::vector<std::int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

std::size_t count_of(const std::vector<std::int64_t>& shape, std::string_view name) {
  std::size_t product = 1;
  bool empty = false;
  for (const std::int64_t extent : shape) {
    if (extent < 0) {
      throw Error(Errc::kInvalidArgument,
                  fmt::format("tensor '{}': shape {} has a negative extent", name, to_text(shape)));
    }
    const auto factor = static_cast<std::size_t>(extent);
    if (factor == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(product, factor, &product) || product > kLargest) {
      too_many(name, to_text(shape));
    }
  }
  return empty ? 0 : product;
}

void append_shape(std::vector<std::int64_t>& group, std::span<const std::int64_t> shape) {
  group.push_back(static_cast<std::int64_t>(shape.size()));
  group.insert(group.end(), shape.begin(), shape.end());
}

std::vector<std::vector<std::int64_t>> shapes_of(const std::vector<std::int64_t>& group) {
  std::vector<std::vector<std::int64_t>> shapes;
  for (auto at = group.begin(); at != group.end();) {
    const std::int64_t extents = *at++;
    if (extents < 0 || extents > group.end() - at) {
      throw Error(Errc::kInvalidArgument, fmt::format("a group's shapes {} make no sense", to_text(group)));
    }
    shapes.emplace_back(at, at + extents);
    at += extents;
  }
  return shapes;
}

std::size_t Request::count() const {
  if (terms.kind != Collective::kGroupedAllReduce) return count_of(shape, name);
  std::size_t sum = 0;
  for (const auto& part : shapes_of(shape)) {
    const std::size_t count = count_of(part, name);
    if (count > kLargest - sum) too_many(name, to_text(part) + " and the rest of its group");
    sum += count;
  }
  return sum;
}

void Request::check() const {
  static_cast<void>(bytes());  // throws if the shape makes no sense
  if (terms == Terms{}) return;
  const auto refuse = [&](const std::string& why) {
    throw Error(Errc::kInvalidArgument, fmt::format("{} '{}': {}", hvd::core::name(terms.kind), name, why));
  };
  const bool reduces = terms.kind == Collective::kAllReduce || terms.kind == Collective::kGroupedAllReduce ||
                       terms.kind == Collective::kReduceScatter;
  const bool by_rows = terms.kind == Collective::kAllGather || terms.kind == Collective::kReduceScatter;
  if (by_rows && shape.empty()) refuse("a scalar has no rows; give it the shape [1]");
  if (terms.kind == Collective::kGroupedAllReduce && shape.empty()) refuse("the group has no tensors");
  if (!reduces && op != ReduceOp::kSum) refuse("it has no reduction, so that its operation must be sum");
  if (terms.root != 0 && terms.kind != Collective::kBroadcast) refuse("it has no root");
  if (terms.root < 0) refuse(fmt::format("root {} is not a rank", terms.root));
  if (!std::isfinite(terms.prescale) || !std::isfinite(terms.postscale)) refuse("a scale factor is not finite");
  if (terms.prescale == 1 && terms.postscale == 1) return;
  if (!reduces) refuse("only a reduction has scale factors");
  if (!scalable(dtype)) refuse(fmt::format("type {} cannot be scaled; use a floating-point type", hvd::name(dtype)));
}

bool Request::matches(const Request& other) const {
  if (terms.kind != Collective::kAllGather) return *this == other;
  return name == other.name && dtype == other.dtype && op == other.op && terms == other.terms &&
         shape.size() == other.shape.size() && std::equal(shape.begin() + 1, shape.end(), other.shape.begin() + 1);
}

std::size_t gathered_bytes(const Request& request, std::span<const std::int64_t> rows) {
  std::vector<std::int64_t> shape = request.shape;
  shape.front() = 0;
  for (const std::int64_t count : rows) {
    if (count < 0 || count > std::numeric_limits<std::int64_t>::max() - shape.front()) {
      throw Error(Errc::kInvalidArgument,
                  fmt::format("all_gather '{}': a rank has {} rows: negative, or the sum exceeds 64 bits", request.name,
                              count));
    }
    shape.front() += count;
  }
  return count_of(shape, request.name) * size_of(request.dtype);
}

}  // namespace hvd::core
