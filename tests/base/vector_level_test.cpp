// Tests which vector level HVD_MAX_CPU_ISA allows.
#include "engine/base/vector_level.h"

#include <gtest/gtest.h>

#include <string>

#include "engine/base/error.h"

namespace hvd::vector_level_test {
namespace {

const std::string kBaseName(name(VectorLevel::kBase));

TEST(VectorLevel, AvailableLevelsAscendFromTheBase) {
  const std::vector<VectorLevel> levels = available_levels();
  ASSERT_FALSE(levels.empty());
  EXPECT_EQ(levels.front(), VectorLevel::kBase);
  for (std::size_t i = 1; i < levels.size(); ++i) {
    EXPECT_LT(levels[i - 1], levels[i]);
    EXPECT_EQ(vector_bytes(levels[i]), 2 * vector_bytes(levels[i - 1]));
  }
  EXPECT_LE(vector_level(), levels.back());
}

TEST(VectorLevel, TheVariableLowersTheLevelAndNeverRaisesIt) {
  const std::vector<VectorLevel> base{VectorLevel::kBase};
  EXPECT_EQ(highest_level(base, ""), VectorLevel::kBase);
  EXPECT_EQ(highest_level(base, kBaseName), VectorLevel::kBase);
#if defined(__x86_64__)
  const std::vector<VectorLevel> all{VectorLevel::kBase, VectorLevel::kAvx2, VectorLevel::kAvx512};
  EXPECT_EQ(highest_level(all, ""), VectorLevel::kAvx512);
  EXPECT_EQ(highest_level(all, "AVX512"), VectorLevel::kAvx512);
  EXPECT_EQ(highest_level(all, "AVX2"), VectorLevel::kAvx2);
  EXPECT_EQ(highest_level(all, "SSE2"), VectorLevel::kBase);
  EXPECT_EQ(highest_level(base, "AVX512"), VectorLevel::kBase);
#endif
}

TEST(VectorLevel, AnUnknownValueNamesTheVariableAndTheValues) {
  for (const char* wrong : {"AVX", "avx2", "SSE2 ", "512"}) {
    try {
      highest_level(available_levels(), wrong);
      FAIL() << wrong;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::kInvalidArgument);
      const std::string text = error.what();
      for (const std::string& part : {std::string("HVD_MAX_CPU_ISA"), "'" + std::string(wrong) + "'", kBaseName}) {
        EXPECT_NE(text.find(part), std::string::npos) << text;
      }
    }
  }
}

}  // namespace
}  // namespace hvd::vector_level_test
