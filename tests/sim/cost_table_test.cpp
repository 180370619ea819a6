#include <gtest/gtest.h>

#include <limits>

#include "engine/base/error.h"
#include "engine/sim/world.h"

namespace hvd::sim::cost_table_test {
namespace {

TEST(CostTable, IsExactForALatencyPlusATimePerByteBetweenAndBeyondItsPoints) {
  // 10 us and 1 GB/s
  const CostTable table({{1000, 11e-6}, {4000, 14e-6}, {1000000, 1010e-6}});
  EXPECT_DOUBLE_EQ(table.seconds(1000), 11e-6);
  EXPECT_DOUBLE_EQ(table.seconds(2000), 12e-6);
  EXPECT_DOUBLE_EQ(table.seconds(500000), 510e-6);
  EXPECT_DOUBLE_EQ(table.seconds(3000000), 3010e-6);
  EXPECT_DOUBLE_EQ(table.seconds(0), 11e-6) << "below the first point: its time";
}

TEST(CostTable, OnePointIsAConstant) {
  const CostTable table({{64, 2.0}});
  EXPECT_EQ(table.seconds(1), 2);
  EXPECT_EQ(table.seconds(1U << 20), 2);
}

TEST(CostTable, IsAsMonotoneAsItsPointsAndStaysBetweenThem) {
  const CostTable rising({{8, 1}, {64, 1}, {512, 3}, {4096, 3.5}, {1U << 20, 700}});
  double before = 0;
  for (std::size_t bytes = 0; bytes < 3000000; bytes += 1 + bytes / 7) {
    EXPECT_GE(rising.seconds(bytes), before) << bytes;
    before = rising.seconds(bytes);
  }
  // Another algorithm from 1025 bytes on is faster.
  const CostTable dip({{1, 1}, {1024, 5}, {1025, 2}, {2048, 3}});
  EXPECT_EQ(dip.seconds(1024), 5);
  EXPECT_EQ(dip.seconds(1025), 2);
  for (std::size_t bytes = 1025; bytes <= 2048; ++bytes) {
    EXPECT_GE(dip.seconds(bytes), 2);
    EXPECT_LE(dip.seconds(bytes), 3);
  }
  EXPECT_EQ(CostTable({{1, 5}, {2, 1}}).seconds(100), 0) << "a falling slope ends at 0";
}

TEST(CostTable, DrawsFactorsOfTheNearestSizeByRatio) {
  const CostTable table({{100, 1, {2, 3}}, {400, 1, {4}}, {1600, 1}});
  EXPECT_EQ(table.factor(1, 0), 2);
  EXPECT_EQ(table.factor(199, 0.49), 2);
  EXPECT_EQ(table.factor(199, 0.5), 3);
  EXPECT_EQ(table.factor(199, 0.99999), 3);
  EXPECT_EQ(table.factor(201, 0.5), 4);
  EXPECT_EQ(table.factor(100000, 0.5), 1) << "without samples there is no jitter";
}

TEST(CostTable, RefusesPointsThatAreNoTable) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  using Points = std::vector<CostPoint>;
  for (const Points& points : {Points{}, Points{{0, 1}}, Points{{8, 1}, {8, 2}}, Points{{8, 1}, {4, 2}},
                               Points{{8, -1}}, Points{{8, nan}}, Points{{8, 1, {-1}}}, Points{{8, 1, {nan}}}}) {
    EXPECT_THROW(CostTable{points}, Error);
  }
}

}  // namespace
}  // namespace hvd::sim::cost_table_test
