// Synthetic images and labels (element.h).
#pragma once

#include <cmath>
#include <cstdint>

#include "engine/base/philox.h"
#include "models/cudnn/kernels/element.h"

namespace hvd::models::cudnn::kernels {

/// Makes four elements of an image from one block of random words, as models/random.cpp does.
template <class T>
struct SyntheticImagesBody {
  std::uint64_t seed, stream;
  const std::uint64_t* first_sample;
  std::int64_t image_elements, count;
  T* images;
  std::int64_t channels = 1, pitch = 1;  ///< `pitch`: elements from the start of one pixel to the next

  HVD_HOST_DEVICE void operator()(std::int64_t i) const {
    // Blocks are counted from the start of the data set, so a batch may begin inside a block.
    const std::uint64_t first = *first_sample * static_cast<std::uint64_t>(image_elements);
    const std::uint64_t block = first / 4 + static_cast<std::uint64_t>(i);
    const auto words = Philox(seed, stream).block(block);
    for (int pair = 0; pair < 4; pair += 2) {
      float u = (static_cast<float>(words[static_cast<std::size_t>(pair)]) + 1.0F) * 0x1.0p-32F;
      u = u < 1.0F ? u : 1.0F;
      const float angle = 6.2831853F * (static_cast<float>(words[static_cast<std::size_t>(pair) + 1]) * 0x1.0p-32F);
      const float radius = std::sqrt(-2.0F * std::log(u));
      const float values[2] = {radius * std::cos(angle), radius * std::sin(angle)};
      for (int k = 0; k < 2; ++k) {
        const auto at = static_cast<std::int64_t>(block * 4 + static_cast<std::uint64_t>(pair + k) - first);
        if (at >= 0 && at < count) images[at / channels * pitch + at % channels] = from_float<T>(values[k]);
      }
    }
  }
};

struct SyntheticLabelsBody {
  std::uint64_t seed, stream;
  const std::uint64_t* first_sample;
  std::int64_t classes;
  std::int32_t* labels;

  HVD_HOST_DEVICE void operator()(std::int64_t i) const {
    const std::uint64_t word = Philox(seed, stream).block(*first_sample + static_cast<std::uint64_t>(i))[0];
    labels[i] = static_cast<std::int32_t>((word * static_cast<std::uint64_t>(classes)) >> 32);
  }
};

}  // namespace hvd::models::cudnn::kernels
