// Other processes of this host, as /proc shows them. Any thread.
#pragma once

#include <cstdint>

namespace hvd::comm {

/// Letter of /proc/<pid>/stat ('R', 'S', 'T' stopped, 'Z' dead), 0 if there is no such process, '?' if it cannot be
/// read.
char process_state(std::uint32_t process) noexcept;

/// Whether `process` runs no more. A zombie does not.
bool has_ended(std::uint32_t process) noexcept;

/// Process ids mean the same where this is equal; 0 where it is not known.
std::uint64_t my_pid_namespace() noexcept;

}  // namespace hvd::comm
