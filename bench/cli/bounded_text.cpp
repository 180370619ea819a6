#include "bench/cli/bounded_text.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iostream>

#include "engine/base/error.h"

namespace hvd::bench {

std::string read_text(const std::string& file, std::size_t most) {
  std::ifstream opened;
  if (file != kStandardInput) opened.open(file, std::ios::binary);
  std::istream& in = file == kStandardInput ? std::cin : opened;
  std::string text;
  for (std::array<char, 1 << 16> piece{}; in && text.size() <= most;) {
    in.read(piece.data(), piece.size());
    text.append(piece.data(), static_cast<std::size_t>(in.gcount()));
  }
  if (text.size() > most) {
    throw Error(Errc::kInvalidArgument,
                fmt::format("{}: more than {} MiB, which no such file needs", file, most >> 20));
  }
  if (!in.eof()) throw Error(Errc::kIo, fmt::format("{}: cannot be read: {}", file, std::strerror(errno)));
  return text;
}

}  // namespace hvd::bench
