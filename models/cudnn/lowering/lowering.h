// Lowers a differentiated graph to a Program: which operations run in one launch, and which values are stored,
// computed again, or written into a slice of a larger value. An oracle says which groups have an engine. The result
// depends only on the graph, the options and the oracle's answers. No GPU library is called here.
//
// Fusion levels. Each level first tries its own fusions. Where the oracle refuses a fusion at a node, lower() uses the
// next level down at this node and records the reason in Program::fallbacks:
//   0  every operation in a launch of its own: the reference for levels 1 and 2
//   1  conv + bias + relu; batch norm (+ add) + relu and its backward; data gradient + sum of diffs + relu backward;
//      linear + bias + relu; pointwise chains and pools in one kernel of ours; concatenation in place
//   2  statistics of a batch norm in the epilogue of the convolution before it; relu backward and the sums of the batch
//      norm's backward in the epilogue of the data gradient
//
// cuDNN runs convolutions. cuBLASLt runs matrix products and, with ImageLayout::kColumns, the first convolution. Our
// own kernels run everything else and take any stride. A convolution that cuDNN refuses is an error.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/cudnn/lowering/program.h"

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

enum class ComputeType : std::uint8_t {
  kFp32,  ///< fp32 products: no tensor cores
  kTf32,  ///< values are fp32 in memory; a product rounds its inputs to tf32
  kFp16,
  kBf16,
};
std::string_view name(ComputeType type) noexcept;
/// Returns the element type of activations and weights in memory.
DataType storage(ComputeType type) noexcept;
/// Returns the number of channels that fill 16 bytes. Engines on tensor cores need a multiple of this number. Returns 1
/// for fp32, which uses no tensor cores.
std::int64_t image_channels_multiple(ComputeType type) noexcept;

struct LoweringOptions {
  ComputeType compute = ComputeType::kFp16;
  DataType gradient = DataType::kF16;  ///< element type of the gradient arena
  FusionOptions fusion = {};           ///< `fusion.level` is the highest level to try
};

/// Says whether cuDNN can run a group. lower() often asks about equal groups, so an oracle should cache its answers
/// by signature().
class EngineOracle {
 public:
  virtual ~EngineOracle() = default;
  /// Returns "" if an engine of cuDNN runs `group`, else the reason why none does, in one line. The group's values are
  /// in `program`.
  virtual std::string refusal(const Program& program, const Group& group) = 0;
};

/// `graph` must be differentiated. Errors: unsupported, naming the node, if cuDNN refuses a convolution even without
/// fusion.
Program lower(const Graph& graph, const LoweringOptions& options, EngineOracle& oracle);

/// Returns the name of our own kernel for `group`, e.g. "norm_apply_add_relu", or "" if there is none. Pure.
std::string own_kernel(const Group& group);

}  // namespace hvd::models::cudnn
