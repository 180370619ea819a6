// Selects the element type and vector width of functors (element.h) from types and addresses known at run time.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>

#include "engine/base/error.h"
#include "models/cudnn/kernels/element.h"

namespace hvd::models::cudnn::kernels {

/// Calls `work` with a null pointer of the element type: work(static_cast<Half*>(nullptr)).
template <class Work>
void with_type(DataType type, const char* kernel, const Work& work) {
  switch (type) {
    case DataType::kF32: return work(static_cast<float*>(nullptr));
    case DataType::kF16: return work(static_cast<Half*>(nullptr));
    case DataType::kBF16: return work(static_cast<Bfloat*>(nullptr));
    default: break;
  }
  throw Error(Errc::kInvalidArgument,
              std::string("kernel ") + kernel + ": no elements of type " + std::string(hvd::name(type)));
}

template <int N>
struct Width {
  static constexpr int value = N;
};

inline constexpr std::int64_t kVectorBytes = 16;

/// Returns true if all these matrices can be read and written 16 bytes at a time.
inline bool is_wide(std::initializer_list<const Matrix*> matrices) {
  for (const Matrix* matrix : matrices) {
    if (matrix->data == nullptr) continue;
    const auto bytes = static_cast<std::int64_t>(size_of(matrix->type));
    if (matrix->channels * bytes % kVectorBytes != 0 || matrix->pitch * bytes % kVectorBytes != 0 ||
        reinterpret_cast<std::uintptr_t>(matrix->data) % kVectorBytes != 0) {
      return false;
    }
  }
  return true;
}

/// Calls `work` with the element type and the vector width, which is 16 bytes if `wide`, else one element.
template <class Work>
void with_vectors(DataType type, bool wide, const char* kernel, const Work& work) {
  with_type(type, kernel, [&](auto* element) {
    constexpr int kWide = kVectorBytes / static_cast<int>(sizeof(*element));
    if (wide) {
      work(element, Width<kWide>());
    } else {
      work(element, Width<1>());
    }
  });
}

template <class Pointer>
using Pointee = std::remove_pointer_t<Pointer>;

}  // namespace hvd::models::cudnn::kernels
