// A sharded optimizer (ZeRO, stage 1: arXiv:1910.02054): each rank keeps the momentum of its share of the weights only.
//   mpirun -np 4 ./sharded_optimizer
//
//   gradients of this rank's data ── reduce_scatter ──► mean gradients of its share ── update ──► its share of the
//   weights ── all_gather ──► all weights
//
// The program also trains without sharding, compares the weights, and fails if they differ by more than rounding does.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "engine/base/error.h"
#include "engine/runtime/engine.h"

namespace {

using Floats = std::vector<float>;
constexpr auto kF32 = hvd::DataType::kF32;
constexpr std::int64_t kWeights = 100003;  // no multiple of the ranks: the first ranks get one weight more
constexpr std::array kShape{kWeights};
constexpr int kSteps = 20;
constexpr float kRate = 0.1F, kMomentum = 0.9F;

/// The gradients of half the squared distance between `weights` and a target of this rank's own.
Floats gradients_of(const Floats& weights, int rank) {
  Floats gradients(weights);
  for (std::size_t i = 0; i < gradients.size(); ++i)
    gradients[i] -= std::sin(0.01F * static_cast<float>(i) + static_cast<float>(rank));
  return gradients;
}

void update(std::span<float> weights, std::span<const float> gradients, std::span<float> momentum) {
  for (std::size_t i = 0; i < weights.size(); ++i) {
    momentum[i] = kMomentum * momentum[i] + gradients[i];
    weights[i] -= kRate * momentum[i];
  }
}

void sharded_step(hvd::Engine& engine, Floats& weights, Floats& momentum) {
  const Floats gradients = gradients_of(weights, engine.rank());
  const hvd::Output mean = engine.take_output(
      engine.reduce_scatter_async("gradients", gradients.data(), kShape, kF32, hvd::ReduceOp::kAverage));
  const auto mine = mean.rows.begin() + engine.rank();  // the numbers of weights that the ranks have
  float* const share = weights.data() + std::accumulate(mean.rows.begin(), mine, std::int64_t{0});
  Floats share_gradients(static_cast<std::size_t>(*mine));
  std::memcpy(share_gradients.data(), mean.bytes.data(), mean.bytes.size());
  momentum.resize(share_gradients.size());
  update({share, momentum.size()}, share_gradients, momentum);
  const hvd::Output all = engine.take_output(engine.all_gather_async("weights", share, std::array{*mine}, kF32));
  std::memcpy(weights.data(), all.bytes.data(), all.bytes.size());
}

int train(hvd::Engine& engine) {
  Floats weights(kWeights, 1.0F + static_cast<float>(engine.rank())), momentum;
  engine.wait(engine.broadcast_async("first weights", weights.data(), kShape, kF32, 0));  // those of rank 0
  Floats whole = weights, whole_momentum(kWeights);
  for (int step = 0; step < kSteps; ++step) {
    sharded_step(engine, weights, momentum);
    Floats gradients = gradients_of(whole, engine.rank());
    engine.wait(engine.all_reduce_async("all gradients", gradients.data(), kShape, kF32, hvd::ReduceOp::kAverage));
    update(whole, gradients, whole_momentum);
  }

  // Both ways add the same gradients, but between nodes perhaps in another order. The mean of n gradients of at most 4
  // then differs by at most n roundings, and an update adds fewer than 8. An error in a gradient moves a weight by less
  // than kRate / (1 - kMomentum) = 1 times the error.
  const double bound = kSteps * (engine.size() + 8) * 4.0 * std::numeric_limits<float>::epsilon();
  double largest = 0;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    const double difference = std::abs(static_cast<double>(weights[i]) - static_cast<double>(whole[i]));
    largest = std::max(largest, std::isnan(difference) ? HUGE_VAL : difference);
  }
  engine.all_reduce(&largest, 1, hvd::DataType::kF64, hvd::ReduceOp::kMax);
  if (engine.rank() == 0) {
    std::printf(
        "%d ranks: rank 0 has the momentum of %zu of %zu weights; difference from unsharded weights: %g (at most "
        "%.1e)\n",
        engine.size(), momentum.size(), whole.size(), largest, bound);
  }
  return largest <= bound ? 0 : 1;
}

}  // namespace

int main() {
  try {
    hvd::Engine engine(hvd::comm::mpi_available() ? hvd::comm::make_mpi() : hvd::comm::make_solo(), {});
    return train(engine);
  } catch (const hvd::Error& error) {  // names the rank, the tensor and what to do
    std::fprintf(stderr, "sharded_optimizer: %s\n", error.what());
    return hvd::exit_code(error.code());
  }
}
