#include "engine/base/files.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "engine/base/error.h"

namespace hvd {

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
  const std::string beside = fmt::format("{}.{}.new", path, ::getpid());
  std::ofstream file(beside, std::ios::binary);
  file << text;
  file.close();
  if (!file) throw Error(Errc::kIo, fmt::format("cannot write {}: {}", beside, std::strerror(errno)));
  if (std::rename(beside.c_str(), path.c_str()) != 0) {
    throw Error(Errc::kIo, fmt::format("cannot rename {} to {}: {}", beside, path, std::strerror(errno)));
  }
}

}  // namespace hvd
