// In which ways the operations of a graph may be put together (analyse.h says what the levels are).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hvd::models::cudnn {

/// How convolutions read images, whose three channels are fewer than the 16 bytes that tensor cores read at a time.
/// fp32 uses no tensor cores, so its images keep three channels.
enum class Images : std::uint8_t {
  kPadded,   ///< with channels of zeroes
  kColumns,  ///< the window of each output pixel as a row of a matrix, so that cuBLASLt multiplies; from level 1 on,
             ///< and where one convolution alone reads the images; else padded
};

/// A way to run a step. The times of single engines do not say which way is faster.
struct Fusion {
  int level = 2;
  Images images = Images::kColumns;
  bool operator==(const Fusion&) const = default;
};
/// "level 2, prologues none, own norms rectifying, images as columns". The words about prologues and norms are always
/// the same: kept winners and stored sessions hold this text from when there was a choice.
std::string text(const Fusion& fusion);
/// `first`, and below level 2 what was faster for some network: on an H200 in fp16, level 2 was for ResNet-101, by 3 %,
/// and level 1 for Inception V3, by 7 %.
std::vector<Fusion> worth_timing(const Fusion& first);

}  // namespace hvd::models::cudnn
