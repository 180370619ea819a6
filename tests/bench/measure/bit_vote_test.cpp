// The tests change some ranks' checksums. The vote must name each outvoted rank, with the first snapshot in which the
// rank's checksum differs, and must name no other rank.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "bench/measure/rank_comparison.h"
#include "bench/train/checksum.h"
#include "engine/base/philox.h"

namespace hvd::bench::bit_vote_test {
namespace {

using Checksums = std::vector<std::vector<std::uint64_t>>;  // [member][snapshot]

constexpr std::size_t kSnapshots = 5;

Checksums equal(std::size_t members) {
  std::vector<std::uint64_t> member(kSnapshots);
  std::iota(member.begin(), member.end(), std::uint64_t{100});
  return Checksums(members, member);
}

/// Changes a member's checksums from `snapshot` on. Two members with the same `way` get the same wrong checksums.
void corrupt_from(Checksums& all, std::size_t member, std::size_t snapshot, std::uint64_t way) {
  for (std::size_t s = snapshot; s < kSnapshots; ++s) all[member][s] ^= way << 32;
}

std::vector<std::pair<std::size_t, std::size_t>> named(const BitVote& result) {
  std::vector<std::pair<std::size_t, std::size_t>> out;
  for (const Deviation& deviation : result.named) out.emplace_back(deviation.member, deviation.snapshot);
  return out;
}

using Named = std::vector<std::pair<std::size_t, std::size_t>>;

TEST(BitVote, EqualMembersAreNotNamed) {
  for (const std::size_t members : {1, 2, 3, 4, 512}) {
    const BitVote result = vote(equal(members));
    EXPECT_TRUE(result.named.empty());
    EXPECT_FALSE(result.disagreement.has_value());
  }
}

TEST(BitVote, OneOfFourOrMoreIsNamedWhereverItGoesWrong) {
  for (const std::size_t members : {4, 5, 8, 512}) {
    for (std::size_t member = 0; member<members; member += members> 8 ? 73 : 1) {
      for (std::size_t snapshot = 0; snapshot < kSnapshots; ++snapshot) {
        Checksums all = equal(members);
        corrupt_from(all, member, snapshot, 1);
        const BitVote result = vote(all);
        EXPECT_EQ(named(result), (Named{{member, snapshot}})) << members << " members";
        EXPECT_FALSE(result.disagreement.has_value());
        EXPECT_NE(result.reference, member);
      }
    }
  }
}

TEST(BitVote, SeveralAreNamedInTheOrderInWhichTheyGoWrong) {
  Checksums all = equal(7);
  corrupt_from(all, 5, 1, 1);
  corrupt_from(all, 2, 3, 2);
  corrupt_from(all, 0, 3, 3);
  EXPECT_EQ(named(vote(all)), (Named{{5, 1}, {0, 3}, {2, 3}}));
  EXPECT_EQ(vote(all).reference, 1U);
}

TEST(BitVote, TheMajorityIsOfAllMembersAndStrict) {
  Checksums all = equal(8);
  for (const std::size_t member : {1, 4, 6}) corrupt_from(all, member, 2, 1);
  EXPECT_EQ(named(vote(all)), (Named{{1, 2}, {4, 2}, {6, 2}})) << "wrong in one way, and still outvoted";
  corrupt_from(all, 7, 2, 1);
  const BitVote tied = vote(all);
  EXPECT_TRUE(tied.named.empty());
  ASSERT_TRUE(tied.disagreement.has_value());
  EXPECT_EQ(tied.disagreement->snapshot, 2U);
  EXPECT_EQ(tied.disagreement->parties, (std::vector<std::vector<std::size_t>>{{0, 2, 3, 5}, {1, 4, 6, 7}}));
}

TEST(BitVote, ThoseNamedBeforeDoNotVoteAgain) {
  Checksums all = equal(4);
  corrupt_from(all, 3, 0, 1);
  corrupt_from(all, 1, 2, 2);
  const BitVote result = vote(all);
  EXPECT_EQ(named(result), (Named{{3, 0}})) << "of four, two that agree are no strict majority";
  ASSERT_TRUE(result.disagreement.has_value());
  EXPECT_EQ(result.disagreement->snapshot, 2U);
  EXPECT_EQ(result.disagreement->parties, (std::vector<std::vector<std::size_t>>{{0, 2}, {1}}));
}

TEST(BitVote, TwoOrThreeDiffer) {
  for (const std::size_t members : {2, 3}) {
    Checksums all = equal(members);
    corrupt_from(all, 0, 1, 1);
    const BitVote result = vote(all);
    EXPECT_TRUE(result.named.empty());
    ASSERT_TRUE(result.disagreement.has_value());
    EXPECT_EQ(result.disagreement->snapshot, 1U);
    EXPECT_EQ(result.disagreement->parties.size(), 2U);
  }
}

// The vote must name the member that has a flipped bit in a tensor. The test flips random bits, and also each bit near
// the tensor's beginning and end, because the checksum has separate code for bytes near both ends.
TEST(BitVote, EveryPlantedBitFlipIsNamed) {
  constexpr std::size_t kBytes = 1004;  // not a multiple of the checksum's stride
  std::vector<std::byte> tensor(kBytes);
  const Philox noise(7);
  for (std::size_t i = 0; i < kBytes; ++i) tensor[i] = static_cast<std::byte>(noise.block(i)[0]);
  const std::vector<std::uint64_t> others{11, 12};
  const auto snapshot = [&](std::span<const std::byte> data) {
    return combined(std::vector<std::uint64_t>{others[0], Checksum().add(data).value(), others[1]});
  };
  std::vector<std::size_t> bits(512);
  std::iota(bits.begin(), bits.begin() + 256, std::size_t{0});
  std::iota(bits.begin() + 256, bits.end(), 8 * kBytes - 256);
  for (std::size_t i = 0; i < 512; ++i) bits.push_back(noise.block(kBytes + i)[1] % (8 * kBytes));
  for (std::size_t i = 0; i < bits.size(); ++i) {
    Checksums all(4, {snapshot(tensor)});
    std::vector<std::byte> flipped = tensor;
    flipped[bits[i] / 8] ^= std::byte{1} << (bits[i] % 8);
    all[i % 4] = {snapshot(flipped)};
    EXPECT_EQ(named(vote(all)), (Named{{i % 4, 0}})) << "bit " << bits[i];
  }
}

}  // namespace
}  // namespace hvd::bench::bit_vote_test
