#include "engine/comm/communicator.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/scale.h"

namespace hvd::comm {
namespace {

constexpr auto kNames = std::to_array<std::pair<Algorithm, std::string_view>>({
    {Algorithm::kAuto, "auto"},
    {Algorithm::kSharedMemory, "shm"},
    {Algorithm::kRing, "ring"},
    {Algorithm::kHierarchical, "hierarchical"},
    {Algorithm::kMpiAllreduce, "mpi"},
    {Algorithm::kRecursiveDoubling, "doubling"},
    {Algorithm::kRabenseifner, "rabenseifner"},
});

}  // namespace

std::string rank_at(std::size_t rank, const std::vector<std::string>& hosts) {
  return fmt::format("rank {} (host {})", rank, rank < hosts.size() ? hosts[rank] : "unknown");
}

std::string_view name(Algorithm algorithm) noexcept {
  for (const auto& [value, text] : kNames) {
    if (value == algorithm) return text;
  }
  return "unknown";
}

Algorithm parse_algorithm(std::string_view text) {
  std::string known;
  for (const auto& [value, its_name] : kNames) {
    if (its_name == text) return value;
    known += known.empty() ? "" : ", ";
    known += its_name;
  }
  throw Error(Errc::kInvalidArgument, fmt::format("unknown all-reduce algorithm '{}'; use one of: {}", text, known));
}

void DataPlane::scale(std::byte* data, std::size_t count, DataType dtype, double factor) {
  if (factor != 1 && count > 0) hvd::scale(data, count, dtype, factor);
}

void check_set(std::span<const int> ranks, int size) {
  if (ranks.empty()) throw Error(Errc::kInvalidArgument, "a process set needs at least one rank");
  std::vector<bool> seen(static_cast<std::size_t>(size));
  for (const int rank : ranks) {
    if (rank < 0 || rank >= size) {
      throw Error(Errc::kInvalidArgument, fmt::format("process set: rank {} is not one of the {} ranks", rank, size));
    }
    if (seen[static_cast<std::size_t>(rank)]) {
      throw Error(Errc::kInvalidArgument, fmt::format("process set: rank {} is named twice", rank));
    }
    seen[static_cast<std::size_t>(rank)] = true;
  }
}

}  // namespace hvd::comm
