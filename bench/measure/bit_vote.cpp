#include "bench/measure/bit_vote.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "bench/measure/slow_ranks.h"
#include "engine/base/assert.h"

namespace hvd::bench {
namespace {

/// Groups the `members` whose checksums of `snapshot` are equal. The largest group comes first. Groups of equal size
/// are ordered by their first member.
std::vector<std::vector<std::size_t>> parties_of(std::span<const std::vector<std::uint64_t>> checksums,
                                                 const std::vector<std::size_t>& members, std::size_t snapshot) {
  std::map<std::uint64_t, std::vector<std::size_t>> by_checksum;
  for (const std::size_t m : members) by_checksum[checksums[m][snapshot]].push_back(m);
  std::vector<std::vector<std::size_t>> parties;
  parties.reserve(by_checksum.size());
  for (auto& [checksum, party] : by_checksum) parties.push_back(std::move(party));
  std::sort(parties.begin(), parties.end(), [](const auto& a, const auto& b) {
    return a.size() != b.size() ? a.size() > b.size() : a.front() < b.front();
  });
  return parties;
}

}  // namespace

BitVote vote(std::span<const std::vector<std::uint64_t>> checksums) {
  HVD_ASSERT(!checksums.empty());
  BitVote result;
  std::vector<std::size_t> trusted(checksums.size());
  std::iota(trusted.begin(), trusted.end(), std::size_t{0});
  for (std::size_t snapshot = 0; snapshot < checksums.front().size(); ++snapshot) {
    std::vector<std::vector<std::size_t>> parties = parties_of(checksums, trusted, snapshot);
    if (parties.size() == 1) continue;
    if (checksums.size() < kMajority || 2 * parties.front().size() <= checksums.size()) {
      result.disagreement = Disagreement{snapshot, std::move(parties)};
      break;
    }
    std::vector<std::size_t> others;
    for (std::size_t p = 1; p < parties.size(); ++p) others.insert(others.end(), parties[p].begin(), parties[p].end());
    std::sort(others.begin(), others.end());
    for (const std::size_t member : others) result.named.push_back({member, snapshot});
    trusted = std::move(parties.front());
  }
  result.reference = trusted.front();
  return result;
}

}  // namespace hvd::bench
