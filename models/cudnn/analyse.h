// From a differentiated graph to a Program: which operations run as one launch, what is stored and what is computed
// again, what is written straight into a slice. Decided from the graph and from what an oracle answers to "is there an
// engine for this group?", and from nothing else: the same answers give the same program. Knows no library.
//
// Fusion levels. A higher level asks for what it has, and where the answer is no, falls back to the next lower one at
// that node alone and records why (Program::fallbacks):
//   0  every operation alone: the reference for the others
//   1  conv + bias + relu; batch norm (+ add) + relu and its backward; data gradient + sum of diffs + relu backward;
//      linear + bias + relu; pointwise chains and pools in one kernel of ours; concatenation in place
//   2  statistics of a batch norm in the epilogue of the convolution before it; relu backward and the sums of the batch
//      norm's backward in the epilogue of the data gradient
//
// Convolutions go to cuDNN, matrix products to cuBLASLt, the first convolution where fusion.h says, and everything else
// to kernels of ours, which take any stride. A convolution that cuDNN refuses is an error.
#pragma once

#include <string>

#include "models/cudnn/fusion.h"
#include "models/cudnn/program.h"

namespace hvd::models::cudnn {

enum class ComputeType : std::uint8_t {
  kFp32,  ///< fp32 products: no tensor cores
  kTf32,  ///< fp32 in memory, products of rounded inputs
  kFp16,
  kBf16,
};
std::string_view name(ComputeType type) noexcept;
/// The element type of activations and weights in memory.
DataType storage(ComputeType type) noexcept;
/// What the channels of an image must be a multiple of for engines on tensor cores: 16 bytes. Of none in fp32, which
/// uses none.
std::int64_t image_channels_multiple(ComputeType type) noexcept;

struct AnalysisOptions {
  ComputeType compute = ComputeType::kFp16;
  DataType gradient = DataType::kF16;  ///< of the gradient arena
  Fusion fusion = {};                  ///< its level is the highest to try
};

/// Says whether a group can be run. Called often for equal groups: keep the answers, by signature().
class EngineOracle {
 public:
  virtual ~EngineOracle() = default;
  /// Empty if some engine of cuDNN runs `group`, whose values are in `program`; else why not, in one line.
  virtual std::string refusal(const Program& program, const Group& group) = 0;
};

/// `graph` must be differentiated. Errors: unsupported, naming the node, if a convolution alone is refused.
Program analyse(const Graph& graph, const AnalysisOptions& options, EngineOracle& oracle);

/// The kernel of ours that runs `group`, e.g. "norm_apply_add_relu"; empty if there is none. Pure.
std::string own_kernel(const Group& group);

}  // namespace hvd::models::cudnn
