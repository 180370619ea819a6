// Runs kernels that have one source and are compiled once for each level (vector_level.h). A target attribute applies
// to a whole function, so each level has a function with the level's attribute into which the kernel is inlined. The
// attribute target_clones could not obey HVD_MAX_CPU_ISA, and would use ifuncs, with which ThreadSanitizer cannot
// start.
//
// All files are compiled with -ffp-contract=off: a fused multiply-add rounds differently from the lowest level of x86,
// which has no such instruction. Everything that a kernel calls must be HVD_ALWAYS_INLINE too, or be compiled for the
// lowest level.
#pragma once

#include "engine/base/assert.h"
#include "engine/base/vector_level.h"

#define HVD_ALWAYS_INLINE __attribute__((always_inline)) inline

namespace hvd {
namespace level_detail {

template <class Kernel, class... Args>
void base(Args... args) {
  Kernel::template run<vector_bytes(VectorLevel::kBase)>(args...);
}
#if defined(__x86_64__)
#if defined(__clang__)
#define HVD_AVX512_TARGET "avx512f,avx512bw,avx512dq,avx512vl,fma"
#else  // GCC uses 256-bit vectors unless told otherwise; clang does not know prefer-vector-width
#define HVD_AVX512_TARGET "avx512f,avx512bw,avx512dq,avx512vl,fma,prefer-vector-width=512"
#endif
template <class Kernel, class... Args>
[[gnu::target("avx2,fma")]] void avx2(Args... args) {
  Kernel::template run<vector_bytes(VectorLevel::kAvx2)>(args...);
}
template <class Kernel, class... Args>
[[gnu::target(HVD_AVX512_TARGET)]] void avx512(Args... args) {
  Kernel::template run<vector_bytes(VectorLevel::kAvx512)>(args...);
}
#undef HVD_AVX512_TARGET
#endif

template <auto kLoop>
struct Loop {
  template <int, class... Args>
  HVD_ALWAYS_INLINE static void run(Args... args) {
    kLoop(args...);
  }
};

}  // namespace level_detail

/// Calls Kernel::run<vector_bytes(level)>(args...), compiled for `level`. `run` must be a HVD_ALWAYS_INLINE template.
/// The processor must have the level.
template <class Kernel, class... Args>
void run_at(VectorLevel level, Args... args) {
  switch (level) {
    case VectorLevel::kBase: return level_detail::base<Kernel>(args...);
#if defined(__x86_64__)
    case VectorLevel::kAvx2: return level_detail::avx2<Kernel>(args...);
    case VectorLevel::kAvx512: return level_detail::avx512<Kernel>(args...);
#else
    default: break;
#endif
  }
  HVD_ASSERT(!"this processor does not have the level");
}

/// Calls kLoop(args...), compiled for `level`. `kLoop` must be a HVD_ALWAYS_INLINE function with plain loops, which the
/// compiler turns into the level's vectors.
template <auto kLoop, class... Args>
void loop_at(VectorLevel level, Args... args) {
  run_at<level_detail::Loop<kLoop>>(level, args...);
}

}  // namespace hvd
