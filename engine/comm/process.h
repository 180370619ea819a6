// Queries other processes of this host through /proc. Any thread.
#pragma once

#include <cstdint>

namespace hvd::comm {

/// Returns the state letter in /proc/PID/stat ('T': stopped, 'Z': zombie); 0: no such process; '?': not readable.
char process_state(std::uint32_t process) noexcept;

/// Returns true if `process` no longer exists or is a zombie.
bool has_ended(std::uint32_t process) noexcept;

/// Returns an id of this process's pid namespace; 0 if unknown. Two processes in the same pid namespace can compare
/// process ids.
std::uint64_t my_pid_namespace() noexcept;

}  // namespace hvd::comm
