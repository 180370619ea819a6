// How the operations of a graph may be fused (lowering.h explains the levels).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hvd::models::cudnn {

/// How convolutions read images. An image's three channels fill less than the 16 bytes that tensor cores read at a
/// time. fp32 uses no tensor cores, so fp32 images keep three channels.
enum class ImageLayout : std::uint8_t {
  kPadded,   ///< channels of zeroes are added
  kColumns,  ///< the window of each output pixel is a row of a matrix that cuBLASLt multiplies. Needs level 1 or 2,
             ///< and images that only one convolution reads. Otherwise images are padded (kPadded).
};

/// A way to fuse the operations of a step. Times of single engines do not show which way is the fastest, so whole steps
/// are timed.
struct FusionOptions {
  int level = 2;
  ImageLayout images = ImageLayout::kColumns;
  bool operator==(const FusionOptions&) const = default;
};
/// For example "level 2, prologues none, own norms rectifying, images as columns". The words about prologues and norms
/// are constant. Prologues and norms were options once, and stored winners and sessions contain this text.
std::string text(const FusionOptions& fusion);
/// Returns `first` and, if its level is 2, the same fusion at level 1. Either level may be the faster one: on an H200
/// in fp16, level 2 was faster than level 1 for ResNet-101, and level 1 was 7 % faster than level 2 for Inception V3.
std::vector<FusionOptions> worth_timing(const FusionOptions& first);

}  // namespace hvd::models::cudnn
