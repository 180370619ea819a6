#include "engine/comm/process.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <string_view>

namespace hvd::comm {

char process_state(std::uint32_t process) noexcept {
  if (kill(static_cast<pid_t>(process), 0) != 0 && errno == ESRCH) return 0;
  std::array<char, 64> path{};
  std::snprintf(path.data(), path.size(), "/proc/%u/stat", process);
  const int file = open(path.data(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return '?';
  std::array<char, 128> text{};  // "1234 (name of 15 bytes) S ..."
  const ssize_t length = read(file, text.data(), text.size());
  close(file);
  const std::string_view line(text.data(), length > 0 ? static_cast<std::size_t>(length) : 0);
  const std::size_t after_name = line.rfind(") ");
  return after_name == std::string_view::npos || after_name + 2 >= line.size() ? '?' : line[after_name + 2];
}

bool has_ended(std::uint32_t process) noexcept {
  const char state = process_state(process);
  return state == 0 || state == 'Z';
}

std::uint64_t my_pid_namespace() noexcept {
  struct stat info {};
  return ::stat("/proc/self/ns/pid", &info) == 0 ? static_cast<std::uint64_t>(info.st_ino) : 0;
}

}  // namespace hvd::comm
