// What rounding may do to a step's loss and gradients, and data on which it does no more than that: what
// step_gpu_test.cpp holds a GPU against, and executor_test.cpp the fake one, whose arithmetic is known.
//
// A rectifier or a maximum that is nearly a tie may go either way: a kink, not an error, and one that moves gradients
// by far more than a rounding. (On an H200 in fp32 the gradient of mixed2.b3.bn.beta in tiny_inception(16, 35, 32) was
// off by 3.054e-5: the element of -1.85e-7 in front of mixed2.b3.relu had gone the other way, and its diff
// is 3.054e-5.) In fp32 few elements are so near that a rounding decides, and for small networks there are seeds
// without any (smallest_margin()); on those the gradients of a correct step are off by roundings alone. In 16 bits and
// tf32 some elements in a thousand are decided otherwise, whatever the seed. The gradients' error is then that of
// these, so it grows as the root of the rounding: tiny_resnet's are off by 8% in fp16, on the fake GPU and on an H200
// alike, and by 22% in bf16. How far each tensor's may be off is therefore measured, by references in double whose
// weights are off by one rounding each, at random.
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

/// Half a unit in the last place of 1 in fp32: what is not rounded more coarsely.
inline constexpr double kFp32Rounding = 0x1.0p-24;

/// A step in double precision, and what a rounding of its weights does to it.
class RoundingModel {
 public:
  RoundingModel(const Graph& forward, std::uint64_t seed);

  [[nodiscard]] const Graph& forward() const noexcept { return forward_; }
  [[nodiscard]] std::uint64_t seed() const noexcept { return seed_; }
  [[nodiscard]] Batch batch() const { return {.images = reference_.images, .labels = reference_.labels}; }

  /// A step's errors, over what is allowed of them.
  struct Verdict {
    std::string wrong;  ///< a few lines; empty: nothing
    double loss = 0, whole = 0, tensor = 0;
    /// "loss 0.04, all gradients 0.71, the worst gradient 0.66 of what is allowed"
    [[nodiscard]] std::string room() const;
  };
  /// On a step whose products or tensors are rounded by `unit`. The `gradient` of each parameter is asked for once.
  Verdict judge(double unit, double loss, const std::function<std::vector<float>(std::size_t)>& gradient);
  /// Why the bounds for `unit` would let an error of binding through; empty: a gradient of zeros, or that of another
  /// parameter of the same shape, is found wrong, for every parameter. In fp32 also that no near-tie can be decided
  /// otherwise.
  [[nodiscard]] std::string blind(double unit);

 private:
  struct Bounds {
    double loss = 0, whole = 0;
    std::vector<double> tensor;  // by parameter
  };
  [[nodiscard]] std::span<const double> right(std::size_t parameter) const;
  /// Relative, of a step in fp32.
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

/// Networks with the seed, of the first hundreds, on which smallest_margin() is largest.
std::vector<RoundingModel> rounding_models();

/// How near a step comes to a kink: the smallest |x| that a rectifier reads, or difference between the largest value
/// in a window of a max pool and the largest that is not equal to it. (Equal ones are copies of one value, and zeroes,
/// behind which no gradient passes.)
double smallest_margin(const Graph& forward, std::uint64_t seed);

}  // namespace hvd::models::cudnn::testing
