// Checks the arguments of collectives. Each rank checks its own arguments before anything is sent. Pure; any thread.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "engine/base/error.h"
#include "engine/base/types.h"

namespace hvd::comm {

/// Returns the size in bytes of a buffer of `count` elements. Errors: invalid_argument if the size exceeds the address
/// space.
inline std::size_t buffer_bytes(std::string_view operation, std::size_t count, DataType dtype) {
  if (count <= SIZE_MAX / 2 / size_of(dtype)) return count * size_of(dtype);
  throw Error(Errc::kInvalidArgument, fmt::format("{} of {} {}: no memory is that large; is the count negative?",
                                                  operation, count, name(dtype)));
}

/// Errors: invalid_argument if `out` and `in` overlap.
inline void check_apart(std::string_view operation, std::span<const std::byte> out, std::span<const std::byte> in) {
  const auto begin = [](std::span<const std::byte> memory) { return reinterpret_cast<std::uintptr_t>(memory.data()); };
  if (out.empty() || in.empty()) return;
  if (begin(out) >= begin(in) + in.size() || begin(in) >= begin(out) + out.size()) return;
  throw Error(Errc::kInvalidArgument,
              fmt::format("{}: input ({} bytes) and output ({} bytes) overlap; use separate buffers or, if the "
                          "operation allows it, exactly the place of the rank's own share",
                          operation, in.size(), out.size()));
}

/// Errors: invalid_argument unless `sent`, the number of elements that `rank` sends to itself, equals `expected`, the
/// number of elements that it expects from itself.
inline void check_own_block(std::size_t rank, std::size_t sent, std::size_t expected) {
  if (sent == expected) return;
  throw Error(Errc::kInvalidArgument,
              fmt::format("all_to_all: rank {} sends itself {} elements, but expects {}", rank, sent, expected));
}

/// Errors: invalid_argument unless `root` is in [0, ranks).
inline void check_root(std::string_view operation, int root, int ranks) {
  if (root >= 0 && root < ranks) return;
  throw Error(Errc::kInvalidArgument, fmt::format("{} from rank {} in a world of {}", operation, root, ranks));
}

/// Errors: invalid_argument if a message of the control plane is longer than `most` bytes.
inline void check_message(std::string_view operation, std::size_t bytes, std::size_t most) {
  if (bytes <= most) return;
  throw Error(Errc::kInvalidArgument, fmt::format("{}: a message of {} bytes; a rank's message can have {} at most: "
                                                  "send it in parts, or through the data plane",
                                                  operation, bytes, most));
}

/// Copies `bytes` bytes, unless `to` and `from` are the same address.
inline void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (to != from && bytes > 0) std::memcpy(to, from, bytes);
}

}  // namespace hvd::comm
