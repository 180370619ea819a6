#include "models/normal.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace hvd::models {
namespace {

std::array<float, 4> normal_block(const Philox& generator, std::uint64_t block) {
  const auto words = generator.block(block);
  std::array<float, 4> values{};
  for (std::size_t pair = 0; pair < 4; pair += 2) {
    // u is in [2^-32, 1], so its logarithm is finite. The largest normal value is sqrt(2 * 32 * ln 2) = 6.7.
    const float u = (static_cast<float>(words.at(pair)) + 1.0F) * 0x1.0p-32F;
    const float angle = 6.2831853F * (static_cast<float>(words.at(pair + 1)) * 0x1.0p-32F);
    const float radius = std::sqrt(-2.0F * std::log(std::min(u, 1.0F)));
    values.at(pair) = radius * std::cos(angle);
    values.at(pair + 1) = radius * std::sin(angle);
  }
  return values;
}

}  // namespace

void fill_normal(const Philox& generator, std::uint64_t first_index, std::span<float> out) {
  std::size_t done = 0;
  while (done < out.size()) {
    const std::uint64_t index = first_index + done;
    const auto values = normal_block(generator, index / 4);
    const std::size_t lane = index % 4;
    const std::size_t take = std::min<std::size_t>(4 - lane, out.size() - done);
    std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(lane), take,
                out.begin() + static_cast<std::ptrdiff_t>(done));
    done += take;
  }
}

}  // namespace hvd::models
