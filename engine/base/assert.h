// HVD_ASSERT: a broken invariant, on in release builds too. Throws std::logic_error so that a rank can
// still tell its peers before it dies; never use it for bad input (error.h).
#pragma once

namespace hvd {

[[noreturn]] void assertion_failed(const char* expression, const char* file, int line);

}  // namespace hvd

// A macro because it must capture the expression's text.
#define HVD_ASSERT(expression) \
  ((expression) ? static_cast<void>(0) : ::hvd::assertion_failed(#expression, __FILE__, __LINE__))
