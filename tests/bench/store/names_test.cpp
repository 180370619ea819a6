// results/names.json carries names and limits of the program to scripts/hvdb.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "bench/coll/problem.h"
#include "bench/measure/decomposition.h"

namespace hvd::bench::names_test {
namespace {

std::string quoted(std::string_view name) { return fmt::format("\"{}\"", name); }

TEST(Names, TheCommittedFileHasTheProgramsNamesAndLimits) {
  std::vector<std::string> components, operations, types, reductions;
  for (const auto& [component, title] : kComponents) {
    components.push_back(fmt::format("    {}: {}", quoted(component), quoted(title)));
  }
  for (const MeasuredCollective collective : coll::kMeasuredCollectives) {
    operations.push_back(quoted(coll::name(collective)));
  }
  for (const auto& [type, title] : coll::kTypeNames) types.push_back(quoted(title));
  for (const auto& [op, title] : coll::kOpNames) reductions.push_back(quoted(title));
  const std::string expected = fmt::format(
      "{{\n  \"components\": {{\n{}\n  }},\n  \"operations\": [{}],\n  \"types\": [{}],\n  \"reductions\": [{}],\n"
      "  \"min_to_believe\": {},\n  \"widest_efficiency\": {},\n"
      "  \"not_resolved\": {{\"without_interval\": \"{}\", \"wide\": \"{}\"}}\n}}\n",
      fmt::join(components, ",\n"), fmt::join(operations, ", "), fmt::join(types, ", "), fmt::join(reductions, ", "),
      kMinToBelieve, kWidestEfficiency, kNoIntervalText, kWideText);
  std::ostringstream committed;
  committed << std::ifstream(HVD_RECORDED "/../names.json").rdbuf();
  EXPECT_EQ(committed.str(), expected) << "write this to results/names.json";
}

}  // namespace
}  // namespace hvd::bench::names_test
