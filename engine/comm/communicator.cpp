#include "engine/comm/communicator.h"

#include <array>
#include <utility>

#include "engine/base/error.h"

namespace hvd::comm {
namespace {

constexpr std::array<std::pair<Algorithm, std::string_view>, 6> kNames{{{Algorithm::kAuto, "auto"},
                                                                        {Algorithm::kSharedMemory, "shm"},
                                                                        {Algorithm::kRing, "ring"},
                                                                        {Algorithm::kHierarchical, "hierarchical"},
                                                                        {Algorithm::kMpiAllreduce, "mpi"},
                                                                        {Algorithm::kRecursiveDoubling, "doubling"}}};

}  // namespace

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
  throw Error(Errc::kInvalidArgument, "unknown all-reduce algorithm '" + std::string(text) + "'; use one of: " + known);
}

}  // namespace hvd::comm
