#include "bench/world/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "bench/store/key_lines.h"
#include "engine/base/error.h"

namespace hvd::bench {
namespace {

std::string judge(const std::vector<comm::Bytes>& all, const comm::Topology& topology) {
  const auto rank_name = [&](std::size_t rank) {
    return fmt::format("rank {} (host {})", rank, topology.hosts.at(rank));
  };
  std::string verdict;
  std::size_t others = 0;
  for (std::size_t r = 1; r < all.size(); ++r) {
    if (all[r] == all[0]) continue;
    if (verdict.empty()) {
      verdict = first_differing_line(comm::text_of(all[0]), comm::text_of(all[r]), rank_name(0), rank_name(r));
    } else {
      ++others;
    }
  }
  if (verdict.empty()) return {};
  if (others > 0) verdict += fmt::format(", and {} more differ from rank 0", others);
  return fmt::format(
      "the ranks were not started alike: {}; give all of them the same program, options and HOROVOD_* variables "
      "(mpirun -x NAME forwards one)",
      verdict);
}

/// Collective. Rank 0 calls judge() with the texts of all ranks, and all ranks return what judge() returned.
template <class Judge>
std::string verdict(comm::Communicator& communicator, const std::string& mine, Judge&& judge, Deadline deadline) {
  comm::ControlPlane& control = communicator.control();
  const comm::Topology& topology = communicator.topology();
  const std::vector<comm::Bytes> all = control.gather(std::as_bytes(std::span(mine)), deadline);
  const std::string judged = topology.rank == 0 ? judge(all, topology) : std::string();
  return comm::text_of(control.broadcast(std::as_bytes(std::span(judged)), 0, deadline));
}

}  // namespace

std::string first_differing_line(std::string_view root, std::string_view other, const std::string& root_name,
                                 const std::string& other_name) {
  while (!root.empty() || !other.empty()) {
    const std::string_view first = take_line(root);
    const std::string_view second = take_line(other);
    if (first == second) continue;
    const auto [name, value] = split_line(first);
    return fmt::format("{} is {} on {} and {} on {}", name, value, root_name, split_line(second).second, other_name);
  }
  return {};
}

void require_equal_settings(comm::Communicator& communicator, const RunSettings& mine, Deadline deadline) {
  if (communicator.topology().size == 1) return;
  const std::string agreed = verdict(communicator, key_lines(mine), judge, deadline);
  if (!agreed.empty()) throw Error(Errc::kMismatch, agreed);
}

void require_no_objection(comm::Communicator& communicator, const std::string& objection, Deadline deadline) {
  const auto first = [](const std::vector<comm::Bytes>& all, const comm::Topology&) {
    const auto objecting = std::find_if(all.begin(), all.end(), [](const comm::Bytes& text) { return !text.empty(); });
    return objecting == all.end() ? std::string() : comm::text_of(*objecting);
  };
  const std::string agreed = verdict(communicator, objection, first, deadline);
  if (!agreed.empty()) throw Error(Errc::kInvalidArgument, agreed);
}

}  // namespace hvd::bench
