// Sums that write or apply a bit mask. The code has a version for AVX-512's mask registers and a plain version for
// other processors. Both versions sum and round in the same way. Compilers do not vectorise bit masks well: with gcc
// 12's code for the plain loops, a sum reached a third of the memory's bandwidth.
#include <algorithm>
#include <bit>

#include "engine/base/float16.h"
#include "models/onednn/kernels.h"
#include "models/onednn/threads.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace hvd::models::onednn {
namespace {

constexpr std::size_t kWord = 64;  // elements per mask word; the shares of threads begin at whole mask words

struct Sum {
  const void* const* parts = nullptr;
  std::size_t part_count = 0;
  const std::uint64_t* mask = nullptr;
  const void* positive = nullptr;
  void* out = nullptr;
};

struct AddRelu {
  const void *a = nullptr, *b = nullptr;
  void* y = nullptr;
  std::uint64_t* mask = nullptr;
};

float load(const float* p, std::size_t i) { return p[i]; }
float load(const std::uint16_t* p, std::size_t i) { return bf16_to_float(p[i]); }
void store(float* p, std::size_t i, float value) { p[i] = value; }
void store(std::uint16_t* p, std::size_t i, float value) { p[i] = float_to_bf16(value); }

template <class T>
void plain_sum(const Sum& s, std::size_t begin, std::size_t end) {
  for (std::size_t i = begin; i < end; ++i) {
    float sum = load(static_cast<const T*>(s.parts[0]), i);
    for (std::size_t p = 1; p < s.part_count; ++p) sum += load(static_cast<const T*>(s.parts[p]), i);
    bool keep = true;
    if (s.mask != nullptr) keep = ((s.mask[i / kWord] >> (i % kWord)) & 1U) != 0;
    if (s.positive != nullptr) keep = load(static_cast<const T*>(s.positive), i) > 0;
    store(static_cast<T*>(s.out), i, keep ? sum : 0);
  }
}

template <class T>
void plain_add_relu(const AddRelu& s, std::size_t begin, std::size_t end) {
  for (std::size_t i = begin; i < end; ++i) {
    const float sum = load(static_cast<const T*>(s.a), i) + load(static_cast<const T*>(s.b), i);
    std::uint64_t& word = s.mask[i / kWord];
    if (i % kWord == 0) word = 0;
    word |= static_cast<std::uint64_t>(sum > 0) << (i % kWord);
    store(static_cast<T*>(s.y), i, sum > 0 ? sum : 0);
  }
}

#if defined(__x86_64__)
#define HVD_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq"), always_inline)) inline
#define HVD_AVX512_ENTRY __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))

bool has_avx512() {
  return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
         __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512dq") != 0;
}

// load16() and store16() load and store sixteen elements.
HVD_AVX512 __m512 load16(const float* p) { return _mm512_loadu_ps(p); }
HVD_AVX512 __m512 load16(const std::uint16_t* p) {
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}
HVD_AVX512 void store16(float* p, __mmask16 keep, __m512 value) {
  _mm512_storeu_ps(p, _mm512_maskz_mov_ps(keep, value));
}
HVD_AVX512 void store16(std::uint16_t* p, __mmask16 keep, __m512 value) {
  const __m512i bits = _mm512_castps_si512(value);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  const __m512i quiet = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
  const __m512i high = _mm512_maskz_srli_epi32(keep, quiet, 16);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(high));
}

/// Sums elements [begin, end), which must be whole mask words. The caller handles an incomplete last word.
template <class T>
HVD_AVX512_ENTRY void vector_sum(const Sum& s, std::size_t begin, std::size_t end) {
  const __m512 zero = _mm512_setzero_ps();
  const T* const first = static_cast<const T*>(s.parts[0]);
  for (std::size_t i = begin; i < end; i += 16) {
    __m512 sum = load16(first + i);
    for (std::size_t p = 1; p < s.part_count; ++p) {
      sum = _mm512_add_ps(sum, load16(static_cast<const T*>(s.parts[p]) + i));
    }
    auto keep = static_cast<__mmask16>(0xffff);
    if (s.mask != nullptr) keep = reinterpret_cast<const std::uint16_t*>(s.mask)[i / 16];
    if (s.positive != nullptr) {
      keep = _mm512_cmp_ps_mask(load16(static_cast<const T*>(s.positive) + i), zero, _CMP_GT_OQ);
    }
    store16(static_cast<T*>(s.out) + i, keep, sum);
  }
}

template <class T>
HVD_AVX512_ENTRY void vector_add_relu(const AddRelu& s, std::size_t begin, std::size_t end) {
  const __m512 zero = _mm512_setzero_ps();
  auto* const masks = reinterpret_cast<std::uint16_t*>(s.mask);
  for (std::size_t i = begin; i < end; i += 16) {
    const __m512 sum = _mm512_add_ps(load16(static_cast<const T*>(s.a) + i), load16(static_cast<const T*>(s.b) + i));
    const __mmask16 keep = _mm512_cmp_ps_mask(sum, zero, _CMP_GT_OQ);
    masks[i / 16] = keep;
    store16(static_cast<T*>(s.y) + i, keep, sum);
  }
}
#else
bool has_avx512() { return false; }
template <class T>
void vector_sum(const Sum& s, std::size_t begin, std::size_t end) {
  plain_sum<T>(s, begin, end);
}
template <class T>
void vector_add_relu(const AddRelu& s, std::size_t begin, std::size_t end) {
  plain_add_relu<T>(s, begin, end);
}
#endif

/// On each thread's share, runs `vector` on the whole mask words and `plain` on the rest. If the processor does not
/// have AVX-512, runs `plain` on the whole share.
template <class Work, class Vector, class Plain>
void shared(const Work& work, std::size_t count, const Vector& vector, const Plain& plain) {
  const bool fast = has_avx512();
  parallel_ranges(count, kWord, [&](std::size_t begin, std::size_t end) {
    const std::size_t whole = fast ? begin + (end - begin) / kWord * kWord : begin;
    if (whole > begin) vector(work, begin, whole);
    if (whole < end) plain(work, whole, end);
  });
}

}  // namespace

void add_relu(DataType type, const void* a, const void* b, void* y, std::byte* mask, std::size_t count) {
  const AddRelu work{.a = a, .b = b, .y = y, .mask = reinterpret_cast<std::uint64_t*>(mask)};
  if (type == DataType::kF32) {
    shared(work, count, vector_add_relu<float>, plain_add_relu<float>);
  } else {
    shared(work, count, vector_add_relu<std::uint16_t>, plain_add_relu<std::uint16_t>);
  }
}

void masked_sum(DataType type, std::span<const void* const> parts, const KeptElements& survivors, void* out,
                std::size_t count) {
  const Sum work{.parts = parts.data(),
                 .part_count = parts.size(),
                 .mask = reinterpret_cast<const std::uint64_t*>(survivors.mask),
                 .positive = survivors.positive,
                 .out = out};
  if (type == DataType::kF32) {
    shared(work, count, vector_sum<float>, plain_sum<float>);
  } else {
    shared(work, count, vector_sum<std::uint16_t>, plain_sum<std::uint16_t>);
  }
}

}  // namespace hvd::models::onednn
