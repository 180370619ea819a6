// Bounds for the errors that rounding causes in a step's loss and gradients, and seeds for which these bounds hold.
// step_gpu_test.cpp checks a real GPU against the bounds. executor_arithmetic_test.cpp checks the fake GPU, whose
// arithmetic is known.
//
// If a rectifier's input is nearly zero, or if two values in a pooling window are nearly equal, rounding may decide
// which element passes. An element that is decided differently is not an error, but it changes gradients by far more
// than a rounding does. (On an H200 in fp32 the gradient of mixed2.b3.bn.beta in tiny_inception(16, 35, 32) was off by
// 3.054e-5. There mixed2.b3.relu reads an element of -1.85e-7, which had become positive, and the element's diff is
// 3.054e-5.) In fp32 few values are so near to zero or to each other, and for some seeds of small networks there are
// none (smallest_margin()). With these seeds, only roundings change the gradients of a correct step. In 16 bits and
// tf32 a few elements in a thousand are decided differently, whatever the seed. These elements cause most of the
// gradients' error, which therefore grows as the root of the rounding. tiny_resnet's gradients are off by 8% in fp16,
// on the fake GPU and on an H200, and by 22% in bf16. Each tensor's bound is therefore measured, with references in
// double in which each weight is changed by one random rounding.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "models/graph/graph.h"
#include "tests/models/testing.h"

namespace hvd::models::cudnn::testing {

/// Half a unit in the last place of the number 1 in fp32.
inline constexpr double kFp32Rounding = 0x1.0p-24;

/// A step in double precision, and bounds that come from rounding its weights.
class RoundingModel {
 public:
  RoundingModel(const Graph& forward, std::uint64_t seed);

  [[nodiscard]] const Graph& forward() const noexcept { return forward_; }
  [[nodiscard]] std::uint64_t seed() const noexcept { return seed_; }
  [[nodiscard]] Batch batch() const { return {.images = reference_.images, .labels = reference_.labels}; }

  /// The errors of a step, each divided by its bound.
  struct Verdict {
    std::string wrong;  ///< a few lines about the errors that exceed their bounds; empty: none does
    double loss = 0, whole = 0, tensor = 0;
    /// Returns a text such as "loss 0.04, all gradients 0.71, the worst gradient 0.66 of what is allowed".
    [[nodiscard]] std::string room() const;
  };
  /// Judges a step whose products or tensors are rounded by `unit`. Calls `gradient` once for each parameter's index.
  Verdict judge(double unit, double loss, const std::function<std::vector<float>(std::size_t)>& gradient);
  /// Checks that the bounds for `unit` are tight enough to find wrongly bound tensors. For every parameter, a gradient
  /// of zeros must be found wrong, and so must the gradient of another parameter of the same shape. In fp32 also checks
  /// that no value is so near a tie that rounding decides. Returns one line for each problem; empty: no problem.
  [[nodiscard]] std::string blind(double unit);

 private:
  struct Bounds {
    double loss = 0, whole = 0;
    std::vector<double> tensor;  // by parameter
  };
  [[nodiscard]] std::span<const double> right(std::size_t parameter) const;
  /// Returns the relative error that a step in fp32 may have.
  [[nodiscard]] double fp32_tolerance() const;
  const Bounds& bounds(double unit);
  [[nodiscard]] Bounds measured(double unit) const;

  Graph forward_;
  std::uint64_t seed_;
  models::testing::Rank reference_;
  double loss_ = 0, norm_ = 0;
  std::vector<double> norms_;  // by parameter
  std::map<double, Bounds> bounds_;
};

/// Returns networks with seeds. A network's seed has the largest smallest_margin() among the first few hundred seeds.
std::vector<RoundingModel> rounding_models();

/// Returns how near a step comes to a tie. This is the minimum over all |x| that a rectifier reads, and over all
/// windows of max pools the difference between the largest and the next smaller value. (Other values equal to the
/// largest are copies of it, or zeroes, through which no gradient passes.)
double smallest_margin(const Graph& forward, std::uint64_t seed);

}  // namespace hvd::models::cudnn::testing
