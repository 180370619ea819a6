#include "bench/cli/doctor/mpi_probe.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <exception>
#include <optional>
#include <sstream>
#include <string_view>

#include "engine/comm/communicator.h"

namespace hvd::bench {
namespace {

constexpr std::string_view kStarted = "started ", kRefused = "refused ";

struct Descriptor {
  int value = -1;
  ~Descriptor() { close(); }
  explicit Descriptor(int opened) : value(opened) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  void close() {
    if (value >= 0) ::close(value);
    value = -1;
  }
};

/// The child: loads and starts MPI, writes the result to `result`, and ends. What MPI prints goes to `printed`.
[[noreturn]] void start_mpi(const comm::MpiChoice& choice, int result, int printed) {
  ::dup2(printed, STDOUT_FILENO);
  ::dup2(printed, STDERR_FILENO);
  std::string text;
  try {
    comm::load_mpi(choice);
    const auto world = comm::make_mpi();
    text = fmt::format("{}{}\n{}", kStarted, world->library(), comm::mpi_path());
  } catch (const std::exception& error) {
    text = std::string(kRefused) + error.what();
  }
  const ssize_t ignored = ::write(result, text.data(), text.size());
  std::_Exit(ignored < 0 ? 1 : 0);
}

/// Reads until the other end is closed. Returns nullopt if that takes longer than `patience`.
std::optional<std::string> read_answer(int descriptor, std::chrono::milliseconds patience) {
  const auto end = std::chrono::steady_clock::now() + patience;
  std::string answer;
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now()).count();
    if (left <= 0) return std::nullopt;
    pollfd ready{descriptor, POLLIN, 0};
    if (::poll(&ready, 1, static_cast<int>(left)) <= 0) continue;
    std::array<char, 4096> piece{};
    const ssize_t got = ::read(descriptor, piece.data(), piece.size());
    if (got > 0) answer.append(piece.data(), static_cast<std::size_t>(got));
    if (got == 0 || (got < 0 && errno != EINTR)) return answer;
  }
}

/// Returns the first bytes of what was written to `file`.
std::string first_bytes(int file) {
  constexpr std::size_t kMaxBytes = 1 << 16;
  std::string text(kMaxBytes, '\0');
  const ssize_t got = ::pread(file, text.data(), text.size(), 0);
  text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return text;
}

}  // namespace

std::string condensed(const std::string& printed) {
  constexpr std::size_t kMaxBytes = 800;  // what is at fault often comes last
  std::istringstream lines(printed);
  std::string out;
  for (std::string line; std::getline(lines, line) && out.size() < kMaxBytes;) {
    std::istringstream words(line);
    for (std::string word; words >> word;) {
      if (word.find_first_not_of("-=*") == std::string::npos) continue;  // Open MPI frames its messages
      if (!out.empty()) out += ' ';
      out += word;
    }
  }
  if (out.size() > kMaxBytes) out = out.substr(0, out.rfind(' ', kMaxBytes)) + " ...";
  return out;
}

MpiProbe probe_mpi(const comm::MpiChoice& choice, std::chrono::milliseconds patience) {
  std::array<int, 2> pipe{-1, -1};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0) return {{}, {}, fmt::format("no pipe: {}", std::strerror(errno))};
  const Descriptor result(pipe[0]);
  Descriptor childs(pipe[1]);
  const Descriptor printed(::memfd_create("mpi-probe", MFD_CLOEXEC));  // a file, so that the child never waits
  const pid_t child = ::fork();
  if (child < 0) return {{}, {}, fmt::format("no process: {}", std::strerror(errno))};
  if (child == 0) start_mpi(choice, childs.value, printed.value);
  childs.close();
  const std::optional<std::string> answer = read_answer(result.value, patience);
  if (!answer) ::kill(child, SIGKILL);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!answer) return {{}, {}, fmt::format("MPI_Init did not return within {} s", patience.count() / 1000)};
  if (answer->starts_with(kStarted)) {
    const std::size_t end = answer->find('\n');
    return {answer->substr(kStarted.size(), end - kStarted.size()), answer->substr(end + 1), {}};
  }
  if (answer->starts_with(kRefused)) return {{}, {}, answer->substr(kRefused.size())};
  const std::string said = condensed(first_bytes(printed.value));
  return {{},
          {},
          fmt::format("MPI_Init ended the process ({}){}{}",
                      WIFSIGNALED(status) ? fmt::format("signal {}", WTERMSIG(status))
                                          : fmt::format("exit code {}", WEXITSTATUS(status)),
                      said.empty() ? "" : ": ", said)};
}

}  // namespace hvd::bench
