#include "bench/cli/doctor/mpi_probe.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <exception>
#include <sstream>
#include <string_view>

#include "engine/comm/communicator.h"

namespace hvd::bench {
namespace {

constexpr std::string_view kStarted = "started ", kRefused = "refused ";

/// Both ends of a pipe, which this object closes.
struct Pipe {
  std::array<int, 2> ends{-1, -1};
  Pipe() {
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) ends = {-1, -1};
  }
  ~Pipe() {
    close_end(0);
    close_end(1);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  void close_end(std::size_t which) {
    if (ends[which] >= 0) ::close(ends[which]);
    ends[which] = -1;
  }
};

/// The child: starts MPI, writes the result to `result`, and ends. What MPI prints goes to `printed`.
[[noreturn]] void start_mpi(int result, int printed) {
  ::dup2(printed, STDOUT_FILENO);
  ::dup2(printed, STDERR_FILENO);
  std::string text;
  try {
    const auto world = comm::make_mpi();
    text = std::string(kStarted) + world->library();
  } catch (const std::exception& error) {
    text = std::string(kRefused) + error.what();
  }
  const ssize_t ignored = ::write(result, text.data(), text.size());
  std::_Exit(ignored < 0 ? 1 : 0);
}

/// Appends what both pipes deliver to their texts, until both are closed or the time is over. Returns false then.
bool read_both(std::array<pollfd, 2> pipes, std::array<std::string*, 2> texts,
               std::chrono::steady_clock::time_point end) {
  while (pipes[0].fd >= 0 || pipes[1].fd >= 0) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now()).count();
    if (left <= 0) return false;
    if (::poll(pipes.data(), pipes.size(), static_cast<int>(left)) < 0 && errno != EINTR) return false;
    for (std::size_t i = 0; i < pipes.size(); ++i) {
      if (pipes[i].fd < 0 || pipes[i].revents == 0) continue;
      std::array<char, 4096> piece{};
      const ssize_t got = ::read(pipes[i].fd, piece.data(), piece.size());
      if (got > 0) texts[i]->append(piece.data(), static_cast<std::size_t>(got));
      if (got == 0 || (got < 0 && errno != EINTR)) pipes[i].fd = -1;  // poll() ignores it
    }
  }
  return true;
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

MpiProbe probe_mpi(std::chrono::milliseconds patience) {
  Pipe result, printed;
  if (result.ends[0] < 0 || printed.ends[0] < 0) return {{}, fmt::format("no pipe: {}", std::strerror(errno))};
  const pid_t child = ::fork();
  if (child < 0) return {{}, fmt::format("no process: {}", std::strerror(errno))};
  if (child == 0) start_mpi(result.ends[1], printed.ends[1]);
  result.close_end(1);
  printed.close_end(1);
  std::string answer, output;
  // A helper of MPI may keep the pipe of the output open, so the answer alone ends the wait.
  const bool answered = read_both({pollfd{result.ends[0], POLLIN, 0}, pollfd{-1, 0, 0}}, {&answer, &output},
                                  std::chrono::steady_clock::now() + patience);
  if (!answered) ::kill(child, SIGKILL);
  read_both({pollfd{-1, 0, 0}, pollfd{printed.ends[0], POLLIN, 0}}, {&answer, &output},
            std::chrono::steady_clock::now() + std::chrono::milliseconds(200));
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (answer.starts_with(kStarted)) return {answer.substr(kStarted.size()), {}};
  if (answer.starts_with(kRefused)) return {{}, answer.substr(kRefused.size())};
  if (!answered) return {{}, fmt::format("MPI_Init did not return within {} s", patience.count() / 1000)};
  const std::string said = condensed(output);
  return {{},
          fmt::format("MPI_Init ended the process ({}){}{}",
                      WIFSIGNALED(status) ? fmt::format("signal {}", WTERMSIG(status))
                                          : fmt::format("exit code {}", WEXITSTATUS(status)),
                      said.empty() ? "" : ": ", said)};
}

}  // namespace hvd::bench
