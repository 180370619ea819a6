// Turns MPI's return codes into hvd::Error.
#pragma once

namespace hvd::comm {

/// Errors: backend with `call` and MPI's text; mismatch if a message was longer than the receiver expected.
void check(int code, const char* call, const char* file = __builtin_FILE(), int line = __builtin_LINE());

}  // namespace hvd::comm
