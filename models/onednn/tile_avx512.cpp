// Tiles by AVX-512 BF16. Other levels need no code of their own: oneDNN computes in bf16 only on processors with these
// instructions, which also flush denormals to zero and so cannot be imitated bit for bit by a few other ones.
#include <immintrin.h>

#include "models/onednn/tile.h"

#define HVD_AVX512_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))

namespace hvd::models::onednn {
namespace {

constexpr std::size_t kTile = 16;

}  // namespace

bool tiles_available(VectorLevel level) noexcept {
  return level >= VectorLevel::kAvx512 && __builtin_cpu_supports("avx512bf16") != 0;
}

HVD_AVX512_BF16 void interleave_rows(const float* from, std::size_t row, std::uint16_t* to, std::size_t pair) {
  alignas(64) static constexpr std::uint16_t kOrder[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                           21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                           11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i order = _mm512_load_si512(kOrder);
  for (std::size_t p = 0; p < kTile / 2; ++p) {
    const __m512 even = _mm512_loadu_ps(from + 2 * p * row);
    const __m512 odd = _mm512_loadu_ps(from + (2 * p + 1) * row);
    const auto both = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(odd, even));
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + p * pair), _mm512_permutexvar_epi16(order, both));
  }
}

HVD_AVX512_BF16 void transpose_pairs(const float* from, std::size_t row, std::uint16_t* to, std::size_t pair) {
  // From here on a pair is one 32-bit word. v[r] has the 8 words of row r and the 8 words of row r + 8. The code does
  // two 8 x 8 transposes at the same time. Each first transposes blocks of 4 x 4 words, and then the 128-bit parts.
  __m512i v[8], half[8];
  for (std::size_t r = 0; r < 8; ++r) {
    v[r] = reinterpret_cast<__m512i>(
        _mm512_cvtne2ps_pbh(_mm512_loadu_ps(from + (r + 8) * row), _mm512_loadu_ps(from + r * row)));
  }
  for (std::size_t r = 0; r < 8; r += 4) {
    const __m512i low01 = _mm512_unpacklo_epi32(v[r], v[r + 1]), high01 = _mm512_unpackhi_epi32(v[r], v[r + 1]);
    const __m512i low23 = _mm512_unpacklo_epi32(v[r + 2], v[r + 3]);
    const __m512i high23 = _mm512_unpackhi_epi32(v[r + 2], v[r + 3]);
    half[r] = _mm512_unpacklo_epi64(low01, low23);
    half[r + 1] = _mm512_unpackhi_epi64(low01, low23);
    half[r + 2] = _mm512_unpacklo_epi64(high01, high23);
    half[r + 3] = _mm512_unpackhi_epi64(high01, high23);
  }
  const __m512i first = _mm512_set_epi64(13, 12, 5, 4, 9, 8, 1, 0);
  const __m512i second = _mm512_set_epi64(15, 14, 7, 6, 11, 10, 3, 2);
  for (std::size_t p = 0; p < 4; ++p) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + p * pair),
                        _mm512_permutex2var_epi64(half[p], first, half[p + 4]));
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + (p + 4) * pair),
                        _mm512_permutex2var_epi64(half[p], second, half[p + 4]));
  }
}

void finish_tiles() noexcept { _mm_sfence(); }

}  // namespace hvd::models::onednn
