// Compares this project's repacking of weights with the library's reorder, bit for bit. Covers every pair of layouts
// that the library chooses for the networks. plan() must refuse all other pairs.
#include "models/onednn/tiled_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "models/train_step.h"

namespace hvd::models::onednn::tiled_copy_test {
namespace {

struct Case {
  std::string name;
  Dims dims;
  Tag stored, wanted;
};

struct Free {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<std::byte, Free>;

/// Returns zeroed memory that is aligned to a cache line, like the program's persistent buffers.
Memory zeroed(std::size_t bytes) {
  const std::size_t size = (bytes + 63) / 64 * 64;
  Memory memory(static_cast<std::byte*>(std::aligned_alloc(64, size)));
  std::memset(memory.get(), 0, size);
  return memory;
}

class TiledCopyLayouts : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (const std::string reason = onednn_unsupported_reason(DataType::kBF16); !reason.empty()) GTEST_SKIP() << reason;
  }
};

TEST_P(TiledCopyLayouts, EqualsTheLibrarysReorder) {
  const Case& c = GetParam();
  const Md stored(c.dims, Type::f32, c.stored), wanted(c.dims, Type::bf16, c.wanted);
  const auto plan = TiledCopy::plan(stored, wanted);
  ASSERT_TRUE(plan);
  ASSERT_EQ(plan->strip() * plan->strips() * sizeof(float), stored.get_size());

  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  const Md plain(c.dims, Type::f32, c.dims.size() == 2 ? Tag::ab : Tag::abcd);
  const Memory logical = zeroed(plain.get_size()), from = zeroed(stored.get_size());
  const Memory expected = zeroed(wanted.get_size()), actual = zeroed(wanted.get_size());
  // No two elements are equal, and many of them lie between two neighbouring bf16 values.
  auto* values = reinterpret_cast<float*>(logical.get());
  const std::size_t count = plain.get_size() / sizeof(float);
  for (std::size_t i = 0; i < count; ++i) {
    const float magnitude = 1.0F + static_cast<float>(i) / static_cast<float>(count);
    values[i] = i % 3 == 0 ? -magnitude : magnitude;
  }
  const auto reorder = [&](const Md& a, std::byte* in, const Md& b, std::byte* out) {
    dnnl::memory source(a, engine, in), target(b, engine, out);
    dnnl::reorder(source, target).execute(stream, source, target);
    stream.wait();
  };
  reorder(plain, logical.get(), stored, from.get());
  reorder(stored, from.get(), wanted, expected.get());

  // Packs the pieces from the last to the first. No piece may overwrite what another piece wrote.
  for (std::size_t strip = plan->strips(); strip-- > 0;) {
    for (std::size_t last = plan->tiles(); last > 0;) {
      const std::size_t first = last - std::min<std::size_t>(last, 3);
      plan->pack(reinterpret_cast<const float*>(from.get()), reinterpret_cast<std::uint16_t*>(actual.get()), strip,
                 first, last);
      last = first;
    }
  }
  TiledCopy::finish();
  EXPECT_EQ(std::memcmp(expected.get(), actual.get(), wanted.get_size()), 0);
  const bool plain_rows = c.stored == Tag::ab || c.stored == Tag::abcd;
  EXPECT_EQ(plan->rows(), plain_rows ? TiledCopy::kTile : 1U);
}

INSTANTIATE_TEST_SUITE_P(, TiledCopyLayouts,
                         ::testing::Values(Case{"forward3x3", {64, 96, 3, 3}, Tag::ABcd16b16a, Tag::AcdB16b32a2b},
                                           Case{"forward3x3wide", {128, 32, 3, 3}, Tag::ABcd16b16a, Tag::AcdB16b64a2b},
                                           Case{"data3x3", {64, 96, 3, 3}, Tag::ABcd16b16a, Tag::ABcd16a16b2a},
                                           Case{"forward1x7", {192, 160, 1, 7}, Tag::ABcd16b16a, Tag::AcdB16b32a2b},
                                           Case{"forward1x1", {128, 64, 1, 1}, Tag::abcd, Tag::AcdB16b64a2b},
                                           Case{"data1x1", {128, 64, 1, 1}, Tag::abcd, Tag::ABcd16a16b2a},
                                           // The packed copy has more padding than the stored weights.
                                           Case{"forwardPadded", {48, 80, 1, 1}, Tag::abcd, Tag::AcdB16b64a2b},
                                           Case{"dataPadded", {48, 80, 1, 1}, Tag::abcd, Tag::ABcd16a16b2a},
                                           // The stored weights and the packed copy have padding.
                                           Case{"storedPadded", {40, 24, 3, 3}, Tag::ABcd16b16a, Tag::AcdB16b32a2b},
                                           Case{"connectedPlain", {128, 96}, Tag::ab, Tag::AB16b64a2b},
                                           Case{"connected", {128, 96}, Tag::AB16b64a, Tag::AB16b64a2b},
                                           Case{"connectedNarrow", {1000, 96}, Tag::AB16b32a, Tag::AB16b32a2b}),
                         [](const auto& test) { return test.param.name; });

TEST(TiledCopy, LeavesOtherLayoutsToTheLibrary) {
  const Dims dims{64, 96, 3, 3};
  const auto planned = [](const Dims& extents, Type a, Tag stored, Type b, Tag wanted) {
    return TiledCopy::plan(Md(extents, a, stored), Md(extents, b, wanted)).has_value();
  };
  EXPECT_FALSE(planned(dims, Type::bf16, Tag::ABcd16b16a, Type::bf16, Tag::AcdB16b32a2b));
  EXPECT_FALSE(planned(dims, Type::f32, Tag::ABcd16b16a, Type::f32, Tag::ABcd16a16b2a));
  EXPECT_FALSE(planned(dims, Type::f32, Tag::ABcd16b16a, Type::bf16, Tag::acdb)) << "no pairs";
  EXPECT_FALSE(planned(dims, Type::f32, Tag::abcd, Type::bf16, Tag::AcdB16b32a2b)) << "pixels inside the rows";
  EXPECT_FALSE(planned({40, 96, 1, 1}, Type::f32, Tag::abcd, Type::bf16, Tag::ABcd16a16b2a)) << "half a tile";
  EXPECT_FALSE(planned({64, 3, 1, 1}, Type::f32, Tag::abcd, Type::bf16, Tag::ABcd16a16b2a)) << "images";
}

TEST(TiledCopy, LeavesAllLayoutsToTheLibraryBelowAvx512) {
  const Md stored({64, 96, 3, 3}, Type::f32, Tag::ABcd16b16a), wanted({64, 96, 3, 3}, Type::bf16, Tag::ABcd16a16b2a);
  EXPECT_FALSE(TiledCopy::plan(stored, wanted, VectorLevel::kAvx2));
  EXPECT_FALSE(TiledCopy::plan(stored, wanted, VectorLevel::kBase));
}

}  // namespace
}  // namespace hvd::models::onednn::tiled_copy_test
