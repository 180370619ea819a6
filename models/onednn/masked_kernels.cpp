// Sums that write or apply a bit mask. Compilers do not vectorise loops over bits, so this file does, with one source
// for all vector levels. A vector of masks has one lane per element. It becomes bits by selecting each lane's own bit
// and joining the lanes, and bits become such a vector by testing each lane's own bit.
#include <algorithm>
#include <array>
#include <cstring>

#include "engine/base/assert.h"
#include "engine/base/vectors.h"
#include "models/onednn/kernels.h"
#include "models/onednn/threads.h"

namespace hvd::models::onednn {
namespace {

constexpr std::size_t kWord = 64;  // elements per mask word; the shares of threads begin at whole mask words
constexpr std::size_t kHalf = 32;  // elements whose bits are collected in one vector

template <class T>
struct AddRelu {
  const T *a = nullptr, *b = nullptr;
  T* y = nullptr;
  std::uint64_t* mask = nullptr;
};

enum class Kept { kAll, kMasked, kPositive };

template <class T>
struct Sum {
  std::array<const T*, kMaxSummands> parts{};
  std::size_t part_count = 0;
  const std::uint64_t* mask = nullptr;
  const T* positive = nullptr;
  T* out = nullptr;
};

/// Two vectors with 2 * kLanes adjacent elements in fp32. In memory of type bf16, an element is half of a 32-bit word:
/// the first vector has the elements in the low halves, the second those in the high halves. Conversion then needs no
/// shuffles, which are slow with AVX2 and SSE2.
template <int kBytes>
struct Pair {
  using F32 = typename Vectors<kBytes>::F32;
  using U32 = typename Vectors<kBytes>::U32;
  static constexpr std::size_t kLanes = Vectors<kBytes>::kLanes;
  static constexpr std::size_t kCount = 2 * kLanes;

  HVD_ALWAYS_INLINE void load(const float* from) {
    first = load_vector<F32>(from);
    second = load_vector<F32>(from + kLanes);
  }
  HVD_ALWAYS_INLINE void load(const std::uint16_t* from) {
    const U32 words = load_vector<U32>(from);
    first = reinterpret_cast<F32>(words << 16);
    second = reinterpret_cast<F32>(words & 0xffff0000U);
  }
  HVD_ALWAYS_INLINE void add(const Pair& other) {
    first += other.first;
    second += other.second;
  }

  F32 first, second;
};

/// One mask per element of a Pair.
template <int kBytes>
struct Keep {
  using U32 = typename Vectors<kBytes>::U32;
  U32 first, second;

  HVD_ALWAYS_INLINE void all() {
    first = U32{} + ~0U;
    second = first;
  }
  HVD_ALWAYS_INLINE void positive(const Pair<kBytes>& values) {
    first = reinterpret_cast<U32>(values.first > 0);
    second = reinterpret_cast<U32>(values.second > 0);
  }
};

/// The bit of each of kHalf elements in a half of a mask word, in the order of the lanes of the Pairs with these
/// elements.
template <class T, int kBytes>
constexpr std::array<std::uint32_t, kHalf> lane_bits() {
  constexpr std::size_t kLanes = Vectors<kBytes>::kLanes;
  std::array<std::uint32_t, kHalf> bits{};
  for (std::size_t at = 0; at < kHalf; ++at) {
    const std::size_t vector = at / kLanes, lane = at % kLanes;
    const std::size_t element = sizeof(T) == 4 ? at : vector / 2 * 2 * kLanes + 2 * lane + vector % 2;
    bits[at] = 1U << element;
  }
  return bits;
}
template <class T, int kBytes>
struct LaneBits {
  alignas(64) static constexpr std::array<std::uint32_t, kHalf> kBits = lane_bits<T, kBytes>();
};

/// Joins the lower and the upper half of the lanes by bitwise OR. g++ 11 has no __builtin_shufflevector, and g++ keeps
/// what memcpy() moves in registers.
template <int kBytes>
HVD_ALWAYS_INLINE typename Vectors<kBytes / 2>::U32 joined_halves(typename Vectors<kBytes>::U32 v) {
  typename Vectors<kBytes / 2>::U32 lower, upper;
  std::memcpy(&lower, &v, sizeof(lower));
  std::memcpy(&upper, reinterpret_cast<const char*>(&v) + sizeof(lower), sizeof(upper));
  return lower | upper;
}
/// Joins the lanes by bitwise OR.
HVD_ALWAYS_INLINE std::uint32_t joined(Vectors<16>::U32 v) { return (v[0] | v[1]) | (v[2] | v[3]); }
HVD_ALWAYS_INLINE std::uint32_t joined(Vectors<32>::U32 v) { return joined(joined_halves<32>(v)); }
HVD_ALWAYS_INLINE std::uint32_t joined(Vectors<64>::U32 v) { return joined(joined_halves<64>(v)); }

/// Returns bf16 in the high halves of the lanes, rounded to nearest even like float_to_bf16(). kNumbers: no lane that
/// is kept has a NaN.
template <int kBytes, bool kNumbers>
HVD_ALWAYS_INLINE typename Vectors<kBytes>::U32 rounded(typename Vectors<kBytes>::F32 value) {
  using U32 = typename Vectors<kBytes>::U32;
  const U32 bits = reinterpret_cast<U32>(value);
  const U32 nearest = bits + (0x7fffU + ((bits >> 16) & 1U));
  if constexpr (kNumbers) return nearest;
  return value != value ? bits | 0x400000U : nearest;  // NOLINT(misc-redundant-expression): a NaN becomes a quiet one
}

/// Stores the kept elements, and 0 for the others.
template <bool kNumbers, int kBytes>
HVD_ALWAYS_INLINE void store(float* to, const Pair<kBytes>& values, const Keep<kBytes>& keep) {
  using U32 = typename Vectors<kBytes>::U32;
  store_vector(to, reinterpret_cast<U32>(values.first) & keep.first);
  store_vector(to + Vectors<kBytes>::kLanes, reinterpret_cast<U32>(values.second) & keep.second);
}
template <bool kNumbers, int kBytes>
HVD_ALWAYS_INLINE void store(std::uint16_t* to, const Pair<kBytes>& values, const Keep<kBytes>& keep) {
  using U32 = typename Vectors<kBytes>::U32;
  const U32 low = rounded<kBytes, kNumbers>(values.first) & keep.first;
  const U32 high = rounded<kBytes, kNumbers>(values.second) & keep.second;
  const U32 words = (low >> 16) | (high & 0xffff0000U);
  store_vector(to, words);
}

template <class T>
struct AddReluKernel {
  template <int kBytes>
  HVD_ALWAYS_INLINE static void run(const AddRelu<T>* work, std::size_t begin, std::size_t end) {
    const AddRelu<T> s = *work;
    for (std::size_t word = begin / kWord; word < end / kWord; ++word) {
      const std::uint64_t low = half<kBytes>(s, word * kWord);
      const std::uint64_t high = half<kBytes>(s, word * kWord + kHalf);
      s.mask[word] = low | high << kHalf;
    }
  }

 private:
  /// Computes kHalf elements. Returns their mask.
  template <int kBytes>
  HVD_ALWAYS_INLINE static std::uint32_t half(const AddRelu<T>& s, std::size_t begin) {
    using U32 = typename Vectors<kBytes>::U32;
    constexpr std::size_t kLanes = Vectors<kBytes>::kLanes;
    U32 bits{};
#pragma GCC unroll 8
    for (std::size_t at = 0; at < kHalf; at += Pair<kBytes>::kCount) {
      Pair<kBytes> sum, b;
      sum.load(s.a + begin + at);
      b.load(s.b + begin + at);
      sum.add(b);
      Keep<kBytes> keep;
      keep.positive(sum);
      const std::uint32_t* own = LaneBits<T, kBytes>::kBits.data() + at;
      bits |= (keep.first & load_vector<U32>(own)) | (keep.second & load_vector<U32>(own + kLanes));
      store<true>(s.y + begin + at, sum, keep);
    }
    return joined(bits);
  }
};

template <class T, Kept kKept>
struct SumKernel {
  template <int kBytes>
  HVD_ALWAYS_INLINE static void run(const Sum<T>* work, std::size_t begin, std::size_t end) {
    const Sum<T>& s = *work;
    for (std::size_t at = begin; at < end; at += kHalf) {
      half<kBytes>(s, at, kKept == Kept::kMasked ? static_cast<std::uint32_t>(s.mask[at / kWord] >> at % kWord) : 0);
    }
  }

 private:
  template <int kBytes>
  HVD_ALWAYS_INLINE static void half(const Sum<T>& s, std::size_t begin, std::uint32_t mask) {
    using U32 = typename Vectors<kBytes>::U32;
    constexpr std::size_t kLanes = Vectors<kBytes>::kLanes, kCount = Pair<kBytes>::kCount, kPairs = kHalf / kCount;
    Pair<kBytes> sums[kPairs];
#pragma GCC unroll 8
    for (std::size_t k = 0; k < kPairs; ++k) sums[k].load(s.parts[0] + begin + k * kCount);
    for (std::size_t p = 1; p < s.part_count; ++p) {
      const T* part = s.parts[p] + begin;
#pragma GCC unroll 8
      for (std::size_t k = 0; k < kPairs; ++k) {
        Pair<kBytes> next;
        next.load(part + k * kCount);
        sums[k].add(next);
      }
    }
    const U32 bits = U32{} + mask;
#pragma GCC unroll 8
    for (std::size_t k = 0; k < kPairs; ++k) {
      Keep<kBytes> keep;
      keep.all();
      if constexpr (kKept == Kept::kPositive) {
        Pair<kBytes> sign;
        sign.load(s.positive + begin + k * kCount);
        keep.positive(sign);
      }
      if constexpr (kKept == Kept::kMasked) {
        const std::uint32_t* own = LaneBits<T, kBytes>::kBits.data() + k * kCount;
        keep.first = reinterpret_cast<U32>((bits & load_vector<U32>(own)) != 0);
        keep.second = reinterpret_cast<U32>((bits & load_vector<U32>(own + kLanes)) != 0);
      }
      store<false>(s.out + begin + k * kCount, sums[k], keep);
    }
  }
};

/// Elements of an incomplete last mask word, filled up with zeros.
template <class T>
class LastWord {
 public:
  LastWord(std::size_t begin, std::size_t end) : begin_(begin), count_(end - begin) {}
  /// Returns memory with a copy of the last elements of `all`, or null for null.
  const T* copy(const T* all) {
    if (all == nullptr) return nullptr;
    T* to = blocks_.at(used_++).data();
    std::copy_n(all + begin_, count_, to);
    return to;
  }
  T* result() { return blocks_.back().data(); }
  void put_result(T* all) { std::copy_n(result(), count_, all + begin_); }

 private:
  std::array<std::array<T, kWord>, kMaxSummands + 2> blocks_{};
  std::size_t begin_, count_, used_ = 0;
};

template <class T>
void add_relu(AddRelu<T> work, std::size_t count, VectorLevel level) {
  parallel_ranges(count, kWord, [&](std::size_t begin, std::size_t end) {
    const std::size_t whole = begin + (end - begin) / kWord * kWord;
    run_at<AddReluKernel<T>>(level, &work, begin, whole);
    if (whole == end) return;
    LastWord<T> last(whole, end);
    const AddRelu<T> rest{
        .a = last.copy(work.a), .b = last.copy(work.b), .y = last.result(), .mask = work.mask + whole / kWord};
    run_at<AddReluKernel<T>>(level, &rest, std::size_t{0}, kWord);
    last.put_result(work.y);
  });
}

template <class T, Kept kKept>
void masked_sum(const Sum<T>& work, std::size_t count, VectorLevel level) {
  parallel_ranges(count, kWord, [&](std::size_t begin, std::size_t end) {
    const std::size_t whole = begin + (end - begin) / kWord * kWord;
    run_at<SumKernel<T, kKept>>(level, &work, begin, whole);
    if (whole == end) return;
    LastWord<T> last(whole, end);
    Sum<T> rest = work;
    for (std::size_t p = 0; p < rest.part_count; ++p) rest.parts[p] = last.copy(work.parts[p]);
    rest.positive = last.copy(work.positive);
    rest.out = last.result();
    if (work.mask != nullptr) rest.mask += whole / kWord;
    run_at<SumKernel<T, kKept>>(level, &rest, std::size_t{0}, kWord);
    last.put_result(work.out);
  });
}

template <class T>
void masked_sum(std::span<const void* const> parts, const KeptElements& survivors, void* out, std::size_t count,
                VectorLevel level) {
  HVD_ASSERT(!parts.empty() && parts.size() <= kMaxSummands);
  Sum<T> work{.part_count = parts.size(),
              .mask = reinterpret_cast<const std::uint64_t*>(survivors.mask),
              .positive = static_cast<const T*>(survivors.positive),
              .out = static_cast<T*>(out)};
  for (std::size_t p = 0; p < parts.size(); ++p) work.parts[p] = static_cast<const T*>(parts[p]);
  if (work.positive != nullptr) return masked_sum<T, Kept::kPositive>(work, count, level);
  if (work.mask != nullptr) return masked_sum<T, Kept::kMasked>(work, count, level);
  masked_sum<T, Kept::kAll>(work, count, level);
}

template <class T>
AddRelu<T> add_relu_work(const void* a, const void* b, void* y, std::byte* mask) {
  return {.a = static_cast<const T*>(a),
          .b = static_cast<const T*>(b),
          .y = static_cast<T*>(y),
          .mask = reinterpret_cast<std::uint64_t*>(mask)};
}

}  // namespace

void add_relu(DataType type, const void* a, const void* b, void* y, std::byte* mask, std::size_t count,
              VectorLevel level) {
  if (type == DataType::kF32) return add_relu(add_relu_work<float>(a, b, y, mask), count, level);
  add_relu(add_relu_work<std::uint16_t>(a, b, y, mask), count, level);
}

void masked_sum(DataType type, std::span<const void* const> parts, const KeptElements& survivors, void* out,
                std::size_t count, VectorLevel level) {
  if (type == DataType::kF32) return masked_sum<float>(parts, survivors, out, count, level);
  masked_sum<std::uint16_t>(parts, survivors, out, count, level);
}

}  // namespace hvd::models::onednn
