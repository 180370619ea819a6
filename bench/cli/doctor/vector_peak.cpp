#include "bench/cli/doctor/vector_peak.h"

#include "engine/base/vectors.h"

namespace hvd::bench {
namespace {

constexpr int kChains = 12;  // keeps all units busy: more than 4 cycles (latency) x 2 units

struct MultiplyAdd {
  template <int kBytes>
  HVD_ALWAYS_INLINE static void run(long rounds, float* result) {
    using F32 = typename Vectors<kBytes>::F32;
    // The compiler must not know the numbers. The chains converge to 1, so it would remove a chain that begins with 1.
    volatile float begin = 0;
    F32 chains[kChains];
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) chains[c] = F32{} + (begin + static_cast<float>(c));
    const F32 factor = F32{} + 0.999F, term = F32{} + 0.001F;
    for (long round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
      for (int c = 0; c < kChains; ++c) chains[c] = chains[c] * factor + term;
    }
    F32 sum{};
    for (const F32& chain : chains) sum += chain;
    float total = 0;
    for (std::size_t lane = 0; lane < Vectors<kBytes>::kLanes; ++lane) total += sum[lane];
    *result = total;
  }
};

}  // namespace

float multiply_add(VectorLevel level, long rounds) {
  float result = 0;
  run_at<MultiplyAdd>(level, rounds, &result);
  return result;
}

double flops_per_round(VectorLevel level) noexcept { return 2.0 * kChains * vector_bytes(level) / sizeof(float); }

long dependent_additions(long count) {
  constexpr int kUnroll = 8;
  long sum = 0, one = 1;
  asm("" : "+r"(one));  // hides the value, so that the compiler and the processor must add registers
  for (long done = 0; done < count; done += kUnroll) {
#pragma GCC unroll 8
    for (int i = 0; i < kUnroll; ++i) {
      sum += one;
      asm("" : "+r"(sum));
    }
  }
  return sum;
}

double most_flops(VectorLevel level, double clock) noexcept {
  constexpr double kUnits = 2, kFlopsPerLane = 2;
  return kUnits * kFlopsPerLane * vector_bytes(level) / sizeof(float) * clock;
}

}  // namespace hvd::bench
