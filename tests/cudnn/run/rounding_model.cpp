#include "tests/cudnn/run/rounding_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <sstream>
#include <utility>

#include "models/graph/autodiff.h"
#include "tests/cudnn/lowering/interpreter.h"
#include "tests/cudnn/lowering/networks.h"
#include "tests/cudnn/lowering/oracles.h"
#include "tests/cudnn/run/difference.h"

namespace hvd::models::cudnn::testing {
namespace {

/// Number of shaken references, with rounded weights. The root mean square of their errors estimates a step's error.
constexpr std::uint64_t kShaken = 8;

// A bound is a factor times the root mean square error of the shaken references. In a shaken reference, each weight has
// one error with standard deviation `unit`. The factor has two parts.
//
// Arithmetic: the error of rounding to nearest is uniform and at most `unit`, so its variance is at most unit^2 / 3. A
// layer of a step rounds four operands: the weight, the input, the product, and the output of the next batch norm or
// rectifier. A shaken reference changes only the weight. Each operand contributes equally to the error of a sum,
// because the terms of the sum are independent, whether the weights or the inputs are off. The variance of a step's
// errors is therefore 4/3 of the variance of the references' errors. A step that truncates has the same variance. Some
// elements are decided differently by a rectifier (rounding_model.h). Their error grows as the root of the rounding,
// and therefore only by (4/3)^(1/4).
//
// Statistics: a step's squared error is divided by the mean squared error of kShaken references. If an error has d
// independent directions, the quotient has an F distribution with d and kShaken * d degrees of freedom. For a tensor of
// n elements, d = min(n - 1, 31): n - 1, because the gradients of the biases of the five classes add up to zero; 31,
// because few elements are decided differently, and each changes many other elements. For all gradients together, d is
// at least 31. A run makes about 1,400 comparisons of single tensors, 50 of all gradients together, and 50 of losses
// (d = 1). The constants below are roots of the quantiles F(d, 8 d; 1 - p), computed from 20 million draws. They assume
// normal errors, also for the elements that are decided differently.
constexpr double kLayerRoundings = 4.0 / 3;
constexpr double kWholeQuantile = 1.55;  ///< for d = 31 and p = 1e-4
/// Returns the root of the quantile for one tensor, for p = 1e-5.
double tensor_quantile(std::size_t elements) {
  constexpr std::array<std::pair<std::size_t, double>, 4> kByElements = {
      {{32, 1.65}, {24, 1.77}, {8, 2.57}, {6, 2.96}}};
  for (const auto& [least, quantile] : kByElements) {
    if (elements >= least) return quantile;
  }
  return 3.32;  // five elements; the networks in rounding_models() have no smaller tensor
}
// A loss is one number, so this is the quantile of Student's t with eight degrees of freedom. Truncation makes each
// product smaller, and therefore also the logits of a network without batch norm. It thus shifts the loss in one
// direction. For this shift, bounds() allows one rounding of the loss.
constexpr double kLossQuantile = 5.04;  ///< for p = 1e-3, two-sided
// The number of roundings of a sum in fp32. K terms added in sequence are off by sqrt(K) roundings. The longest product
// in these networks has 3 x 3 x 32 = 288 terms. Sums over pixels have up to 4,096 terms, but threads add these in a
// tree of 12 levels, which has fewer roundings than 288 terms in sequence. A batch norm over few pixels magnifies
// errors. The constant does not include this magnification, because there is no useful bound for it.
constexpr double kFp32SumRoundings = 17;

constexpr double kDoubleRounding = 1e-12;
constexpr double kMinNorm = 1e-5;  ///< absolute error allowed in fp32, because terms of about one may cancel in a sum

void visit_windows(const Window& window, const Shape& x, const Shape& y,
                   const std::function<void(const std::vector<std::size_t>&)>& visit) {
  std::vector<std::size_t> elements;
  for (std::int64_t pixel = 0; pixel < y[0] * y[1] * y[2]; ++pixel) {
    const std::int64_t n = pixel / (y[1] * y[2]);
    const std::int64_t top = pixel / y[2] % y[1] * window.stride_h - window.pad_top;
    const std::int64_t left = pixel % y[2] * window.stride_w - window.pad_left;
    for (std::int64_t c = 0; c < x[3]; ++c) {
      elements.clear();
      for (std::int64_t h = std::max<std::int64_t>(top, 0); h < std::min(top + window.kernel_h, x[1]); ++h) {
        for (std::int64_t w = std::max<std::int64_t>(left, 0); w < std::min(left + window.kernel_w, x[2]); ++w) {
          elements.push_back(static_cast<std::size_t>(((n * x[1] + h) * x[2] + w) * x[3] + c));
        }
      }
      visit(elements);
    }
  }
}

std::string text(double error, double allowed, double norm) {
  std::ostringstream out;
  out << "off by " << error << ", allowed " << allowed << ", norm " << norm;
  return out.str();
}

}  // namespace

RoundingModel::RoundingModel(const Graph& forward, std::uint64_t seed)
    : forward_(forward), seed_(seed), reference_(forward, {.gradient = DataType::kF64, .seed = seed}) {
  loss_ = reference_.forward_backward();
  for (std::size_t p = 0; p < reference_.step->slots().size(); ++p) {
    double square = 0;
    for (const double value : right(p)) square += value * value;
    norms_.push_back(std::sqrt(square));
    norm_ = std::hypot(norm_, norms_.back());
  }
}

std::span<const double> RoundingModel::right(std::size_t parameter) const {
  const ArenaSlot& slot = reference_.step->slots()[parameter];
  return reference_.gradients().subspan(slot.offset, slot.count);
}

// The errors of layers are independent, so they grow as the root of the number of layers.
double RoundingModel::fp32_tolerance() const {
  return kFp32SumRoundings * std::sqrt(static_cast<double>(forward_.nodes.size())) * kFp32Rounding;
}

const RoundingModel::Bounds& RoundingModel::bounds(double unit) {
  const auto [known, first] = bounds_.try_emplace(unit);
  Bounds& bounds = known->second;
  if (!first) return bounds;
  if (unit <= kFp32Rounding) {
    const double tolerance = fp32_tolerance();
    bounds = {.loss = tolerance * loss_, .whole = tolerance * norm_, .tensor = {}};
    for (const double norm : norms_) bounds.tensor.push_back(4 * tolerance * norm + kMinNorm);
    return bounds;
  }
  bounds = measured(unit);
  bounds.loss = std::sqrt(kLayerRoundings) * kLossQuantile * (bounds.loss + unit * loss_);
  bounds.whole *= std::sqrt(kLayerRoundings) * kWholeQuantile;
  for (std::size_t p = 0; p < norms_.size(); ++p) {
    const double factor = std::sqrt(kLayerRoundings) * tensor_quantile(reference_.step->slots()[p].count);
    bounds.tensor[p] = factor * (bounds.tensor[p] + unit * norms_[p]);
  }
  return bounds;
}

RoundingModel::Bounds RoundingModel::measured(double unit) const {
  Bounds squares{.tensor = std::vector<double>(norms_.size())};
  for (std::uint64_t i = 0; i < kShaken; ++i) {
    models::testing::Rank shaken(forward_, {.gradient = DataType::kF64, .seed = seed_});
    const auto noise = models::testing::random_values(static_cast<std::int64_t>(shaken.parameters().size()), 99 + i);
    for (std::size_t k = 0; k < noise.size(); ++k) shaken.parameters()[k] *= 1 + unit * noise[k];
    squares.loss += std::pow(shaken.forward_backward() - loss_, 2) / kShaken;
    for (std::size_t p = 0; p < norms_.size(); ++p) {
      const ArenaSlot& slot = shaken.step->slots()[p];
      const Difference moved(shaken.gradients().subspan(slot.offset, slot.count), right(p));
      squares.tensor[p] += moved.error * moved.error / kShaken;
      squares.whole += moved.error * moved.error / kShaken;
    }
  }
  for (double& square : squares.tensor) square = std::sqrt(square);
  return {.loss = std::sqrt(squares.loss), .whole = std::sqrt(squares.whole), .tensor = std::move(squares.tensor)};
}

std::string RoundingModel::Verdict::room() const {
  std::ostringstream out;
  out.precision(2);
  out << "loss " << loss << ", all gradients " << whole << ", the worst gradient " << tensor << " of what is allowed";
  return out.str();
}

RoundingModel::Verdict RoundingModel::judge(double unit, double loss,
                                            const std::function<std::vector<float>(std::size_t)>& gradient) {
  const Bounds& allowed = bounds(unit);
  Verdict verdict;
  std::ostringstream lines;
  const double loss_error = std::abs(loss - loss_);
  verdict.loss = loss_error / allowed.loss;
  if (!(verdict.loss <= 1)) lines << "the loss is " << text(loss_error, allowed.loss, loss_) << "\n";
  double whole = 0;
  std::size_t off = 0;
  std::string worst;
  for (std::size_t p = 0; p < norms_.size(); ++p) {
    const Difference difference(gradient(p), right(p));
    const std::string& name = reference_.step->slots()[p].name;
    whole = std::hypot(whole, difference.error);
    const double ratio = difference.error / allowed.tensor[p];
    if (!(ratio <= 1) && off++ == 0) {
      lines << "the first gradient that is wrong, of " << name << ", is "
            << text(difference.error, allowed.tensor[p], difference.norm) << "\n";
    }
    if (ratio <= verdict.tensor) continue;
    verdict.tensor = ratio;
    worst = name;
  }
  if (off > 0) {
    lines << off << " of " << norms_.size() << " gradients are wrong, the worst, of " << worst << ", by "
          << verdict.tensor << " times what is allowed\n";
  }
  verdict.whole = whole / allowed.whole;
  if (!(verdict.whole <= 1)) lines << "all gradients together are " << text(whole, allowed.whole, norm_) << "\n";
  verdict.wrong = lines.str();
  return verdict;
}

std::string RoundingModel::blind(double unit) {
  const Bounds& allowed = bounds(unit);
  const auto slots = reference_.step->slots();
  std::ostringstream lines;
  for (std::size_t p = 0; p < slots.size(); ++p) {
    if (allowed.tensor[p] >= norms_[p]) {
      lines << "zeroes would pass as the gradient of " << slots[p].name << ": " << allowed.tensor[p]
            << " is allowed of " << norms_[p] << "\n";
    }
    for (std::size_t other = 0; other < slots.size(); ++other) {
      if (other == p || slots[other].shape != slots[p].shape) continue;
      const double apart = Difference(right(other), right(p)).error;
      // If the outputs of two batch norms are added, both get the same diff, and their gradients of beta are equal.
      if (apart > allowed.tensor[p] || apart <= kDoubleRounding * norms_[p]) continue;
      lines << "the gradient of " << slots[other].name << " would pass as that of " << slots[p].name << "\n";
    }
  }
  // The needed margin is five standard deviations of the error that a value of about one has.
  if (unit <= kFp32Rounding) {
    const double margin = smallest_margin(forward_, seed_), needed = 5 * fp32_tolerance();
    if (margin < needed) {
      lines << "a near-tie of " << margin << ", below " << needed << ": choose another seed than " << seed_ << "\n";
    }
  }
  return lines.str();
}

std::vector<RoundingModel> rounding_models() {
  std::vector<RoundingModel> list;
  list.emplace_back(tiny_resnet(16, 16, 32), 451);   // smallest margin 6.2e-5, the best of 600 seeds
  list.emplace_back(tiny_inception(8, 13, 32), 77);  // smallest margin 7.2e-5, the best of 400 seeds
  list.emplace_back(models::testing::tiny_vgg(16), 11);
  return list;
}

double smallest_margin(const Graph& forward, std::uint64_t seed) {
  const Graph graph = differentiate(forward);
  const models::testing::Rank rank(forward, {.gradient = DataType::kF64, .seed = seed});
  ServesAll oracle;
  const Program program =
      lower(graph, {.compute = ComputeType::kFp32, .gradient = DataType::kF32, .fusion = {.level = 0}}, oracle);
  Interpreter step(graph, program);
  step.set(graph.images, std::vector<double>(rank.images.begin(), rank.images.end()));
  for (std::size_t p = 0; p < graph.parameters.size(); ++p) {
    const ArenaSlot& slot = rank.step->slots()[p];
    step.set(graph.parameters[p].value, rank.parameters().subspan(slot.offset, slot.count));
  }
  for (std::size_t i = 0; i < graph.tensors.size(); ++i) {
    if (graph.tensors[i].role != TensorRole::kState) continue;
    step.set(static_cast<TensorId>(i), std::vector<double>(static_cast<std::size_t>(graph.tensors[i].shape.count())));
  }
  step.run(rank.labels, seed);

  double margin = std::numeric_limits<double>::infinity();
  for (const Node& node : forward.nodes) {
    if (node.kind != OpKind::kRelu && node.kind != OpKind::kMaxPool) continue;
    const std::vector<double> x = step.get(node.inputs[0]);
    if (node.kind == OpKind::kRelu) {
      for (const double value : x) margin = std::min(margin, std::abs(value));
      continue;
    }
    visit_windows(std::get<Window>(node.attr), forward.tensor(node.inputs[0]).shape,
                  forward.tensor(node.outputs[0]).shape, [&](const std::vector<std::size_t>& window) {
                    double largest = x[window[0]];
                    for (const std::size_t i : window) largest = std::max(largest, x[i]);
                    if (largest <= 0) return;
                    for (const std::size_t i : window) {
                      if (x[i] < largest) margin = std::min(margin, largest - x[i]);
                    }
                  });
  }
  return margin;
}

}  // namespace hvd::models::cudnn::testing
