// How the operations of a graph may be fused (analyse.h explains the levels).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hvd::models::cudnn {

/// How convolutions read images, whose three channels are fewer than the 16 bytes that tensor cores read at a time.
/// fp32 uses no tensor cores, so its images keep three channels.
enum class Images : std::uint8_t {
  kPadded,   ///< channels of zeroes are added
  kColumns,  ///< the window of each output pixel is a row of a matrix, and cuBLASLt multiplies. Needs level 1 or 2 and
             ///< images that only one convolution reads; else as kPadded
};

/// A way to run a step. Times of single engines do not tell which way is faster, so whole steps are timed.
struct Fusion {
  int level = 2;
  Images images = Images::kColumns;
  bool operator==(const Fusion&) const = default;
};
/// "level 2, prologues none, own norms rectifying, images as columns". The words about prologues and norms are
/// constant: they were options once, and stored winners and sessions contain this text.
std::string text(const Fusion& fusion);
/// Returns `first` and, if its level is 2, the same at level 1. Either may be faster: on an H200 in fp16, level 2 was
/// faster for ResNet-101, level 1 was 7 % faster for Inception V3.
std::vector<Fusion> worth_timing(const Fusion& first);

}  // namespace hvd::models::cudnn
