#include "engine/comm/reduce.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "engine/base/assert.h"
#include "engine/base/at_level.h"
#include "engine/base/float16.h"

namespace hvd::comm {
namespace {

// The element types below say how inputs (type `T`) become operands (type `Acc`) and results become outputs (type
// `Out`). Their conversions do not branch, so that the compiler can vectorise the loops.
template <class Type>
struct Plain {
  using T = Type;
  using Out = Type;
  using Acc = Type;
  static Acc load(T value) { return value; }
  static T store(Acc value) { return value; }
};

struct BF16 {
  using T = std::uint16_t;
  using Out = T;
  using Acc = float;
  static Acc load(T value) { return bf16_to_float(value); }
  static T store(Acc value) { return float_to_bf16(value); }
};

// Converts to the same values as engine/base/float16.h (a test compares all of them), with selects instead of branches.
// Source of the method: F. Giesen, "float->half variants", https://gist.github.com/rygorous/2156668
struct FP16 {
  using T = std::uint16_t;
  using Out = T;
  using Acc = float;
  static Acc load(T value) {
    const std::uint32_t magnitude = (value & 0x7fffU) << 13;
    const auto scaled = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112F);
    const std::uint32_t special = magnitude | 0x7f800000U;  // infinity and NaN
    const std::uint32_t sign = (value & 0x8000U) << 16;
    return std::bit_cast<float>((magnitude >= 0x0f800000U ? special : scaled) | sign);
  }
  static T store(Acc value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t magnitude = bits & 0x7fffffffU;
    const std::uint32_t normal = (magnitude + 0xc8000fffU + ((magnitude >> 13) & 1U)) >> 13;
    const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3f000000U;
    const std::uint32_t finite = magnitude < 0x38800000U ? subnormal : normal;
    const std::uint32_t special = magnitude > 0x7f800000U ? 0x7e00U : 0x7c00U;
    return static_cast<T>((magnitude >= 0x47800000U ? special : finite) | ((bits >> 16) & 0x8000U));
  }
};

// Element types for convert(): Narrowing has fp32 inputs and `Half` outputs; Widening has `Half` inputs and fp32
// outputs.
template <class Half>
struct Narrowing {
  using T = float;
  using Out = typename Half::T;
  using Acc = float;
  static Acc load(T value) { return value; }
  static Out store(Acc value) { return Half::store(value); }
};
template <class Half>
struct Widening {
  using T = typename Half::T;
  using Out = float;
  using Acc = float;
  static Acc load(T value) { return Half::load(value); }
  static Out store(Acc value) { return value; }
};

struct Sum {
  template <class A>
  static A apply(A a, A b) {
    if constexpr (std::is_integral_v<A>) {  // wraps: Wide is unsigned, and wide enough not to be promoted to int
      using Wide = std::conditional_t<sizeof(A) == 8, std::uint64_t, std::uint32_t>;
      return static_cast<A>(static_cast<Wide>(a) + static_cast<Wide>(b));
    } else {
      return a + b;
    }
  }
};
struct Product {
  template <class A>
  static A apply(A a, A b) {
    if constexpr (std::is_integral_v<A>) {  // integers wrap, as in Sum
      using Wide = std::conditional_t<sizeof(A) == 8, std::uint64_t, std::uint32_t>;
      return static_cast<A>(static_cast<Wide>(a) * static_cast<Wide>(b));
    } else {
      return a * b;
    }
  }
};
struct Min {
  template <class A>
  static A apply(A a, A b) {
    return b < a ? b : a;
  }
};
struct Max {
  template <class A>
  static A apply(A a, A b) {
    return a < b ? b : a;
  }
};

struct Problem {
  std::span<const std::byte* const> inputs;
  std::span<std::byte* const> outputs;
  std::size_t count;
  int divisor;
};

template <class Acc>
HVD_ALWAYS_INLINE Acc divided(Acc value, int divisor, Acc reciprocal) {
  if constexpr (std::is_integral_v<Acc>) {
    return divisor == 1 ? value : static_cast<Acc>(static_cast<std::int64_t>(value) / divisor);
  } else {
    return value * reciprocal;
  }
}

// Accumulates a tile in the first-level cache, then writes it out: each input is read and each output is written once.
template <class E, class Op>
HVD_ALWAYS_INLINE void kernel(const Problem* arguments) {
  const Problem& problem = *arguments;
  using T = typename E::T;
  using Acc = typename E::Acc;
  constexpr std::size_t kTile = 1024;
  alignas(64) std::array<Acc, kTile> acc;
  const Acc reciprocal = static_cast<Acc>(1) / static_cast<Acc>(problem.divisor);
  const auto input = [&](std::size_t k) { return reinterpret_cast<const T*>(problem.inputs[k]); };
  for (std::size_t begin = 0; begin < problem.count; begin += kTile) {
    const std::size_t n = std::min(kTile, problem.count - begin);
    const T* first = input(0) + begin;
    if (problem.inputs.size() == 1) {
      for (std::size_t i = 0; i < n; ++i) acc[i] = E::load(first[i]);
    } else {
      const T* second = input(1) + begin;
      for (std::size_t i = 0; i < n; ++i) acc[i] = Op::apply(E::load(first[i]), E::load(second[i]));
    }
    for (std::size_t k = 2; k < problem.inputs.size(); ++k) {
      const T* next = input(k) + begin;
      for (std::size_t i = 0; i < n; ++i) acc[i] = Op::apply(acc[i], E::load(next[i]));
    }
    if (problem.divisor != 1) {
      for (std::size_t i = 0; i < n; ++i) acc[i] = divided(acc[i], problem.divisor, reciprocal);
    }
    for (std::byte* output : problem.outputs) {
      auto* out = reinterpret_cast<typename E::Out*>(output) + begin;
      for (std::size_t i = 0; i < n; ++i) out[i] = E::store(acc[i]);
    }
  }
}

template <class E, class Op>
void dispatch(const Problem& problem, VectorLevel level) {
  loop_at<kernel<E, Op>>(level, &problem);
}

template <class E>
void dispatch_op(const Problem& problem, ReduceOp op, VectorLevel level) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage: return dispatch<E, Sum>(problem, level);
    case ReduceOp::kMin: return dispatch<E, Min>(problem, level);
    case ReduceOp::kMax: return dispatch<E, Max>(problem, level);
    case ReduceOp::kProduct: return dispatch<E, Product>(problem, level);
  }
  HVD_ASSERT(!"unknown ReduceOp");
}

void dispatch_type(const Problem& problem, DataType dtype, ReduceOp op, VectorLevel level) {
  switch (dtype) {
    case DataType::kF32: return dispatch_op<Plain<float>>(problem, op, level);
    case DataType::kF64: return dispatch_op<Plain<double>>(problem, op, level);
    case DataType::kF16: return dispatch_op<FP16>(problem, op, level);
    case DataType::kBF16: return dispatch_op<BF16>(problem, op, level);
    case DataType::kI32: return dispatch_op<Plain<std::int32_t>>(problem, op, level);
    case DataType::kI64: return dispatch_op<Plain<std::int64_t>>(problem, op, level);
    case DataType::kU8: return dispatch_op<Plain<std::uint8_t>>(problem, op, level);
    case DataType::kI8: return dispatch_op<Plain<std::int8_t>>(problem, op, level);
    case DataType::kI16: return dispatch_op<Plain<std::int16_t>>(problem, op, level);
  }
  HVD_ASSERT(!"unknown DataType");
}

}  // namespace

void reduce_many(std::span<const std::byte* const> inputs, std::span<std::byte* const> outputs, std::size_t count,
                 DataType dtype, ReduceOp op, int divisor, VectorLevel level) {
  HVD_ASSERT(!inputs.empty() && divisor >= 1);
  dispatch_type({inputs, outputs, count, divisor}, dtype, op, level);
}

void reduce_pair(std::byte* out, const std::byte* first, const std::byte* second, std::size_t count, DataType dtype,
                 ReduceOp op) {
  const std::array<const std::byte*, 2> inputs{first, second};
  const std::array<std::byte*, 1> outputs{out};
  reduce_many(inputs, outputs, count, dtype, op);
}

void convert(std::byte* out, DataType out_type, const std::byte* in, DataType in_type, std::size_t count,
             VectorLevel level) {
  const DataType half = in_type == DataType::kF32 ? out_type : in_type;
  HVD_ASSERT((in_type == DataType::kF32) != (out_type == DataType::kF32));
  HVD_ASSERT(half == DataType::kF16 || half == DataType::kBF16);
  const std::array<const std::byte*, 1> inputs{in};
  const std::array<std::byte*, 1> outputs{out};
  const Problem problem{inputs, outputs, count, 1};
  if (in_type == DataType::kF32) {
    return half == DataType::kF16 ? dispatch<Narrowing<FP16>, Sum>(problem, level)
                                  : dispatch<Narrowing<BF16>, Sum>(problem, level);
  }
  return half == DataType::kF16 ? dispatch<Widening<FP16>, Sum>(problem, level)
                                : dispatch<Widening<BF16>, Sum>(problem, level);
}

void divide(std::byte* data, std::size_t count, DataType dtype, int divisor) {
  if (divisor == 1) return;
  const std::array<const std::byte*, 1> inputs{data};
  const std::array<std::byte*, 1> outputs{data};
  reduce_many(inputs, outputs, count, dtype, ReduceOp::kSum, divisor);
}

}  // namespace hvd::comm
