// In place of the GPU's grid.cuh, where tests compile our kernels' sources for the host: every index in turn, at once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "engine/base/error.h"
#include "models/cudnn/kernels/dispatch.h"

namespace hvd::models::cudnn::kernels {

template <class Body>
void for_each(const Body& body, std::int64_t count, Stream /*stream*/, const char* /*kernel*/) {
  for (std::int64_t i = 0; i < count; ++i) body(i);
}

template <class Body>
void for_each_of_each(const Body& body, std::size_t lists, std::int64_t /*longest*/, Stream /*stream*/,
                      const char* /*kernel*/) {
  for (std::size_t list = 0; list < lists; ++list) {
    for (std::int64_t i = 0; i < body.count(list); ++i) body(list, i);
  }
}

}  // namespace hvd::models::cudnn::kernels
