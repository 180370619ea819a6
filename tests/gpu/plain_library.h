// A library that can be loaded, but is none of NVIDIA's.
#pragma once

#include <array>
#include <filesystem>
#include <string>

#include "engine/base/assert.h"
#include "engine/gpu/shared_library.h"

namespace hvd::test {

/// Makes `file` a loadable library, a copy of the C library's libm, and its folder if need be.
inline void put_library(const std::filesystem::path& file) {
  const gpu::SharedLibrary maths(std::array<std::string, 1>{"libm.so.6"});
  HVD_ASSERT(maths.loaded());
  std::filesystem::create_directories(file.parent_path());
  std::filesystem::copy_file(maths.path(), file);
}

}  // namespace hvd::test
