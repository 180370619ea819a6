// Tests that ranks which store their parameters in different layouts are named before training starts.
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "bench/train/host_trainer.h"
#include "engine/base/error.h"

namespace hvd::bench::layouts_test {
namespace {

/// Makes the ranks compare the layouts of their parameters. Returns texts[rank]: the text of the rank's error, or "".
std::vector<std::string> compare(const std::vector<StoredLayouts>& ranks) {
  auto communicators = comm::make_loopback(static_cast<int>(ranks.size()));
  std::vector<std::string> thrown(ranks.size());
  std::vector<std::jthread> threads;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    threads.emplace_back([&, r] {
      Engine engine(std::move(communicators[r]), {});
      try {
        require_equal_layouts(engine, ranks[r]);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Errc::kMismatch) << error.what();
        thrown[r] = error.what();
      }
      engine.barrier();
    });
  }
  threads.clear();
  return thrown;
}

TEST(Layouts, ThoseThatDifferAreNamedOnAllRanks) {
  const StoredLayouts wide{"A, onednn 2.6.0 avx512_core", {{"conv", "acdb"}, {"fc", "AB16b16a"}}};
  const StoredLayouts narrow{"B, onednn 2.6.0 avx2", {{"conv", "acdb"}, {"fc", "AB8b8a"}}};
  for (const std::string& text : compare({wide, wide, wide})) EXPECT_EQ(text, "");
  const StoredLayouts same_on_another{"C, onednn 3.7.2 avx512_core_fp16", wide.layouts};
  for (const std::string& text : compare({wide, same_on_another})) EXPECT_EQ(text, "") << "only layouts count";

  const auto thrown = compare({wide, same_on_another, narrow, narrow});
  for (const std::string& text : thrown) EXPECT_EQ(text, thrown[0]);
  const std::string& text = thrown[0];
  EXPECT_NE(text.find("fc is AB16b16a on rank 0 (host "), std::string::npos) << text;
  EXPECT_NE(text.find(", A, onednn 2.6.0 avx512_core) and AB8b8a on rank 2 (host "), std::string::npos) << text;
  EXPECT_NE(text.find(", B, onednn 2.6.0 avx2)"), std::string::npos) << text;
  EXPECT_NE(text.find("1 more ranks differ"), std::string::npos) << text;
}

}  // namespace
}  // namespace hvd::bench::layouts_test
