#include "bench/cli/doctor/machine_rate.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "engine/base/vectors.h"

namespace hvd::bench {
namespace {

// A processor with kUnits units keeps them busy with at least 4 (cycles of latency) * kUnits chains. The chains, the
// factor and the term must fit into the vector registers, of which Arm and AVX-512 have 32, and SSE2 and AVX2 16.
#if defined(__aarch64__)
constexpr int kChains = 24;
constexpr double kUnits = 4;  // Neoverse V1 and V2. Source: their software optimization guides, "ASIMD FP multiply-add"

struct Chain {
  // NEON's multiply-add overwrites the summand, so the chain is the summand: a chain that is a factor would take a copy
  // of the term each time. The products are too small to change a chain, which stays 1.
  static constexpr float kBegin = 1, kStep = 0, kFactor = 0x1p-20F, kTerm = 0x1p-20F;
  HVD_ALWAYS_INLINE static void advance(Vectors<16>::F32& chain, Vectors<16>::F32 factor, Vectors<16>::F32 term) {
    chain = vfmaq_f32(chain, factor, term);
  }
};
#else
constexpr int kChains = 12;
constexpr double kUnits = 2;

struct Chain {
  // The chains begin with different numbers and converge to 1.
  static constexpr float kBegin = 0, kStep = 1, kFactor = 0.999F, kTerm = 0.001F;
  template <class F32>
  HVD_ALWAYS_INLINE static void advance(F32& chain, const F32& factor, const F32& term) {
    chain = chain * factor + term;
  }
};
#endif

struct MultiplyAdd {
  template <int kBytes>
  HVD_ALWAYS_INLINE static void run(long rounds, float* result) {
    using F32 = typename Vectors<kBytes>::F32;
    // The compiler must not know the numbers, or it could remove a chain that begins with 1 and stays 1.
    volatile float zero = 0;
    F32 chains[kChains];
#pragma GCC unroll 24
    for (int c = 0; c < kChains; ++c) chains[c] = F32{} + (zero + Chain::kBegin + Chain::kStep * static_cast<float>(c));
    const F32 factor = F32{} + Chain::kFactor, term = F32{} + Chain::kTerm;
    for (long round = 0; round < rounds; ++round) {
#pragma GCC unroll 24
      for (int c = 0; c < kChains; ++c) Chain::advance(chains[c], factor, term);
    }
    F32 sum{};
    // All loops over the chains are unrolled, or the compiler would keep the chains in memory and store them each
    // round.
#pragma GCC unroll 24
    for (int c = 0; c < kChains; ++c) sum += chains[c];
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

double multiply_add_units() noexcept { return kUnits; }

double most_flops(VectorLevel level, double clock) noexcept {
  constexpr double kFlopsPerLane = 2;
  return kUnits * kFlopsPerLane * vector_bytes(level) / sizeof(float) * clock;
}

}  // namespace hvd::bench
