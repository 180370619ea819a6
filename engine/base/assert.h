// HVD_ASSERT checks an invariant, in release builds too. A broken invariant throws std::logic_error, so that a rank can
// tell its peers before it exits. For bad input throw Error (error.h) instead.
#pragma once

namespace hvd {

[[noreturn]] void assertion_failed(const char* expression, const char* file, int line);

}  // namespace hvd

// HVD_ASSERT is a macro because it must capture the text of the expression.
#define HVD_ASSERT(expression) \
  ((expression) ? static_cast<void>(0) : ::hvd::assertion_failed(#expression, __FILE__, __LINE__))
