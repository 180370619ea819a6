// In which ways the operations of a graph may be put together (analyse.h says what the levels are).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hvd::models::cudnn {

/// At level 2: which convolutions may apply the batch norm before them, instead of reading what has been normalised.
/// (H200, cuDNN 9.19, fp16, batch 256: none is the fastest, of ResNet-101 by 3 %, of Inception V3 by 4 %.)
enum class Prologues : std::uint8_t { kNone, kPointwise /**< of kernel 1 x 1 */, kAll };

/// How convolutions read images, whose three channels are fewer than the 16 bytes that tensor cores read at a time.
/// fp32 uses no tensor cores, so its images keep three channels.
enum class Images : std::uint8_t {
  kPadded,   ///< with channels of zeroes
  kColumns,  ///< the window of each output pixel as a row of a matrix, so that cuBLASLt multiplies; from level 1 on,
             ///< and where one convolution alone reads the images; else padded
};

/// What of this is asked for: a way to run a step. Whether one is faster than another no engine's time says.
struct Fusion {
  int level = 2;
  Prologues prologues = Prologues::kNone;
  Images images = Images::kColumns;
  bool operator==(const Fusion&) const = default;
};
/// Everything that cuDNN may have engines for at `level`, except batch norms.
constexpr Fusion cudnn_alone(int level) { return {level, Prologues::kAll, Images::kPadded}; }
/// "level 2, prologues none, own norms rectifying, images as columns". The words about norms are always the same: kept
/// winners and stored sessions hold this text from when there was a choice.
std::string text(const Fusion& fusion);
/// `first`, and below level 2 what was faster for some network: on an H200 in fp16, level 2 was for ResNet-101, by 3 %,
/// and level 1 for Inception V3, by 7 %.
std::vector<Fusion> worth_timing(const Fusion& first);

}  // namespace hvd::models::cudnn
