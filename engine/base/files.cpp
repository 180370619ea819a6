#include "engine/base/files.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "engine/base/error.h"

namespace hvd {

void replace_file(const std::string& path, std::string_view text) {
  const std::string beside = path + "." + std::to_string(::getpid()) + ".new";
  std::ofstream file(beside, std::ios::binary);
  file << text;
  file.close();
  if (!file) throw Error(Errc::kIo, "cannot write " + beside + ": " + std::strerror(errno));
  if (std::rename(beside.c_str(), path.c_str()) != 0) {
    throw Error(Errc::kIo, "cannot rename " + beside + " to " + path + ": " + std::strerror(errno));
  }
}

}  // namespace hvd
