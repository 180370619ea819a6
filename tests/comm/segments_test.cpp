// Tests that a ring between nodes sends no message above the transport's eager limit, and longer ones where there is
// none.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "engine/comm/loopback/loopback.h"
#include "engine/comm/transport.h"
#include "tests/base/patience.h"
#include "tests/base/threads.h"

namespace hvd::test::segments_test {
namespace {

constexpr std::size_t kCount = std::size_t{1} << 18;  // 1 MiB in fp32
constexpr int kRanks = 3;

/// Forwards to `inner`, says that its eager limit is `eager`, and writes the length of the longest message to
/// `longest`.
class Limited final : public comm::Transport {
 public:
  Limited(std::unique_ptr<comm::Transport> inner, std::size_t eager, std::size_t& longest)
      : inner_(std::move(inner)), eager_(eager), longest_(longest) {}
  Ticket send(int to, std::span<const std::byte> bytes) override {
    longest_ = std::max(longest_, bytes.size());
    return inner_->send(to, bytes);
  }
  Ticket receive(int from, std::span<std::byte> bytes) override { return inner_->receive(from, bytes); }
  bool test(Ticket ticket) override { return inner_->test(ticket); }
  void wait(Ticket ticket, const comm::Wait& wait) override { inner_->wait(ticket, wait); }
  void notify(int to, const comm::Notice& notice) noexcept override { inner_->notify(to, notice); }
  std::optional<comm::Notice> poll_notice() noexcept override { return inner_->poll_notice(); }
  bool library_all_reduce(std::byte* data, std::size_t count, DataType dtype, ReduceOp op,
                          const comm::Wait& wait) override {
    return inner_->library_all_reduce(data, count, dtype, op, wait);
  }
  std::size_t eager_bytes() const noexcept override { return eager_; }
  std::string name() const override { return inner_->name(); }

 private:
  std::unique_ptr<comm::Transport> inner_;
  std::size_t eager_;
  std::size_t& longest_;
};

struct Outcome {
  std::vector<float> sums;
  std::size_t longest = 0;  ///< bytes of the longest message of any rank
};

/// All-reduces kCount elements over kRanks nodes, whose transport says that its eager limit is `eager`.
Outcome ring(std::size_t eager) {
  std::vector<std::size_t> longest(kRanks);
  comm::CommOptions options;
  options.algorithm = comm::Algorithm::kRing;
  auto world = comm::make_wrapped_loopback(kRanks, options, 1, [&](int rank, std::unique_ptr<comm::Transport> inner) {
    return std::make_unique<Limited>(std::move(inner), eager, longest[static_cast<std::size_t>(rank)]);
  });
  std::vector<std::vector<float>> data(kRanks, std::vector<float>(kCount));
  on_threads(world.size(), [&](std::size_t r) {
    for (std::size_t i = 0; i < kCount; ++i) data[r][i] = 0.1F * static_cast<float>(i % 97 + r);
    world[r]->data().all_reduce(data[r].data(), kCount, DataType::kF32, ReduceOp::kSum, Deadline::after(kNever));
  });
  EXPECT_EQ(data[1], data[0]);
  EXPECT_EQ(data[2], data[0]);
  return {data[0], *std::max_element(longest.begin(), longest.end())};
}

TEST(RingSegments, AreNotLongerThanTheEagerLimitAndChangeNoBit) {
  const Outcome whole = ring(0);
  EXPECT_EQ(whole.longest, comm::CommOptions{}.segment_bytes);
  const Outcome eager = ring(60 << 10);
  EXPECT_EQ(eager.longest, std::size_t{60} << 10);
  EXPECT_EQ(eager.sums, whole.sums);
  EXPECT_EQ(ring(std::size_t{1} << 30).longest, whole.longest) << "a limit never makes segments longer";
}

}  // namespace
}  // namespace hvd::test::segments_test
