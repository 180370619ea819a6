#include "engine/base/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <system_error>

#include "engine/base/error.h"

namespace hvd {
namespace {

struct NewFile {
  int descriptor = -1;
  std::string path;
};

/// Creates a file beside `path` that no other process or thread has. Their process ids may be equal, because containers
/// that share a folder have namespaces of their own, and ranks may be threads; so the name is random.
NewFile create_beside(const std::string& path) {
  std::random_device random;
  for (int tries = 100; tries > 0; --tries) {
    NewFile made{-1, fmt::format("{}.{:08x}.new", path, random())};
    made.descriptor = ::open(made.path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (made.descriptor >= 0) return made;
    if (errno != EEXIST) break;
  }
  throw Error(Errc::kIo, fmt::format("cannot write {}: {}", path, std::strerror(errno)));
}

}  // namespace

std::string program_file() {
  std::error_code absent;
  return std::filesystem::read_symlink("/proc/self/exe", absent).string();
}

int write_all(int descriptor, std::string_view text) noexcept {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written < 0 && errno != EINTR) return errno;
    if (written > 0) text.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

std::optional<std::string> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return file && !text.bad() ? std::optional(text.str()) : std::nullopt;
}

void require_replaceable(const std::string& path) {
  std::error_code unknown;  // ignored: if status() fails, writing the file fails and reports why
  const auto status = std::filesystem::status(path, unknown);
  if (!std::filesystem::exists(status) || std::filesystem::is_regular_file(status)) return;
  throw Error(Errc::kIo, fmt::format("{} is a {}; give a file's name", path,
                                     std::filesystem::is_directory(status) ? "folder" : "device, pipe or socket"));
}

void replace_file(const std::string& path, std::string_view text) {
  require_replaceable(path);
  const auto [descriptor, beside] = create_beside(path);
  int failed = write_all(descriptor, text);
  if (::close(descriptor) != 0 && failed == 0) failed = errno;  // a file system may report a full quota only here
  if (failed == 0 && std::rename(beside.c_str(), path.c_str()) == 0) return;
  const bool written = failed == 0;
  if (written) failed = errno;
  ::unlink(beside.c_str());
  throw Error(Errc::kIo, written ? fmt::format("cannot rename {} to {}: {}", beside, path, std::strerror(failed))
                                 : fmt::format("cannot write {}: {}", beside, std::strerror(failed)));
}

}  // namespace hvd
