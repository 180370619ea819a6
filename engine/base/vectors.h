// Vectors of kBytes bytes, made of GCC's and clang's vector extensions, for kernels with one source for all levels
// (at_level.h). A kernel must use vectors of the width of its level: gcc 12 splits wider vectors into single elements.
// Functions that take or return vectors must be HVD_ALWAYS_INLINE, because how a call passes vectors depends on the
// level; files with such functions are compiled with -Wno-psabi, which would warn of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "engine/base/at_level.h"

namespace hvd {

template <int kBytes>
struct Vectors {
  static constexpr std::size_t kLanes = kBytes / 4;
  typedef float F32 __attribute__((vector_size(kBytes)));
  typedef std::uint32_t U32 __attribute__((vector_size(kBytes)));
};

/// Loads a vector from memory of any alignment.
template <class Vector>
HVD_ALWAYS_INLINE Vector load_vector(const void* from) {
  Vector vector;
  std::memcpy(&vector, from, sizeof vector);
  return vector;
}
template <class Vector>
HVD_ALWAYS_INLINE void store_vector(void* to, const Vector& vector) {
  std::memcpy(to, &vector, sizeof vector);
}

}  // namespace hvd
