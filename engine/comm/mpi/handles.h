// Converts handles of an MPI, which are integers or pointers, to those of table.h and back.
#pragma once

#include <type_traits>

#include "engine/comm/mpi/table.h"

namespace hvd::comm {

template <class Handle>
Handle native_of(HvdMpiHandle wide) {
  if constexpr (std::is_pointer_v<Handle>) {
    return reinterpret_cast<Handle>(wide);  // NOLINT(performance-no-int-to-ptr): it was a pointer
  } else {
    return static_cast<Handle>(wide);
  }
}

template <class Handle>
HvdMpiHandle handle_of(Handle native) {
  static_assert(sizeof(Handle) <= sizeof(HvdMpiHandle));  // NOLINT(bugprone-sizeof-expression): of the pointer itself
  if constexpr (std::is_pointer_v<Handle>) {
    return reinterpret_cast<HvdMpiHandle>(native);
  } else {
    return static_cast<HvdMpiHandle>(native);
  }
}

}  // namespace hvd::comm
