// Imitates a file system without locks. This library is loaded with LD_PRELOAD. It makes flock() and the lock commands
// of fcntl() fail for the files under the folder HVD_NO_LOCKS_IN, with the error that HVD_NO_LOCKS_ERRNO names.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace {

int chosen_error() {
  const char* const name = std::getenv("HVD_NO_LOCKS_ERRNO");
  const std::string_view error = name == nullptr ? "ENOSYS" : name;
  if (error == "ENOLCK") return ENOLCK;          // NFS without a lock daemon
  if (error == "EOPNOTSUPP") return EOPNOTSUPP;  // FUSE
  if (error == "EINVAL") return EINVAL;
  return ENOSYS;  // Lustre without -o flock
}

bool lacks_locks(int descriptor) {
  const char* const folder = std::getenv("HVD_NO_LOCKS_IN");
  if (folder == nullptr) return false;
  std::array<char, 64> link{};
  std::snprintf(link.data(), link.size(), "/proc/self/fd/%d", descriptor);
  std::array<char, 4096> file{};
  const ssize_t length = ::readlink(link.data(), file.data(), file.size() - 1);
  if (length < 0) return false;
  return std::string_view(file.data(), static_cast<std::size_t>(length)).starts_with(folder);
}

bool is_lock(int command) {
  switch (command) {
    case F_GETLK:
    case F_SETLK:
    case F_SETLKW:
    case F_OFD_GETLK:
    case F_OFD_SETLK:
    case F_OFD_SETLKW: return true;
    default: return false;
  }
}

int pass_on(const char* name, int descriptor, int command, void* argument) {
  if (is_lock(command) && lacks_locks(descriptor)) {
    errno = chosen_error();
    return -1;
  }
  using Function = int (*)(int, int, ...);
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name))(descriptor, command, argument);
}

}  // namespace

extern "C" int fcntl(int descriptor, int command, ...) {
  std::va_list arguments;
  va_start(arguments, command);
  void* const argument = va_arg(arguments, void*);
  va_end(arguments);
  return pass_on("fcntl", descriptor, command, argument);
}

extern "C" int fcntl64(int descriptor, int command, ...) {
  std::va_list arguments;
  va_start(arguments, command);
  void* const argument = va_arg(arguments, void*);
  va_end(arguments);
  return pass_on("fcntl64", descriptor, command, argument);
}

extern "C" int flock(int descriptor, int operation) {
  if (lacks_locks(descriptor)) {
    errno = chosen_error();
    return -1;
  }
  return reinterpret_cast<int (*)(int, int)>(::dlsym(RTLD_NEXT, "flock"))(descriptor, operation);
}
