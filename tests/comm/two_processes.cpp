#include "tests/comm/two_processes.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "engine/base/error.h"

namespace hvd::test {
namespace {

class Socket {
 public:
  Socket() = default;
  explicit Socket(int handle) : handle_(handle) {}
  Socket(Socket&& other) noexcept : handle_(std::exchange(other.handle_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Socket() {
    if (handle_ >= 0) ::close(handle_);
  }
  [[nodiscard]] int get() const { return handle_; }

 private:
  int handle_ = -1;
};

std::array<Socket, 2> make_pair() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw Error(Errc::kIo, std::string("socketpair: ") + std::strerror(errno));
  }
  return {Socket(ends[0]), Socket(ends[1])};
}

void send_all(int socket, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0) throw Error(Errc::kPeerLost, std::string("the other process is gone: ") + std::strerror(errno));
    bytes = bytes.subspan(static_cast<std::size_t>(sent));
  }
}

/// Receives `bytes` bytes, or fewer at the end of the stream. Errors: timeout.
comm::Bytes receive(int socket, std::size_t bytes, Deadline deadline) {
  comm::Bytes got;
  std::array<std::byte, 4096> piece{};
  while (got.size() < bytes) {
    pollfd look{.fd = socket, .events = POLLIN, .revents = 0};
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline.remaining()).count();
    if (::poll(&look, 1, static_cast<int>(std::min<std::int64_t>(left, 1 << 30))) == 0) {
      throw Error(Errc::kTimeout, "the other process has sent nothing by the deadline");
    }
    const ssize_t count = ::recv(socket, piece.data(), std::min(piece.size(), bytes - got.size()), 0);
    if (count <= 0) break;
    got.insert(got.end(), piece.begin(), piece.begin() + count);
  }
  return got;
}

std::vector<comm::Bytes> exchange(int rank, int socket, std::span<const std::byte> message, Deadline deadline) {
  // The length is sent first, so that an empty message is also a barrier.
  const std::uint64_t length = message.size();
  send_all(socket, std::as_bytes(std::span(&length, 1)));
  send_all(socket, message);
  const comm::Bytes greeting = receive(socket, sizeof length, deadline);
  comm::Bytes theirs = receive(socket, message.size(), deadline);
  if (greeting.size() != sizeof length || theirs.size() != message.size() ||
      std::memcmp(greeting.data(), &length, sizeof length) != 0) {
    throw Error(Errc::kPeerLost, "the other process is gone, or sends something else");
  }
  std::vector<comm::Bytes> all{comm::Bytes(message.begin(), message.end()), std::move(theirs)};
  if (rank == 1) std::swap(all[0], all[1]);
  return all;
}

/// Runs the child process; does not return.
[[noreturn]] void live(int rank, const RankBody& body, const Socket& peer, const Socket& parent) {
  std::string outcome;
  try {
    outcome = body(rank, [&](std::span<const std::byte> message, Deadline deadline) {
      return exchange(rank, peer.get(), message, deadline);
    });
  } catch (const std::exception& error) {
    outcome = std::string("error: ") + error.what();
  }
  try {
    send_all(parent.get(), std::as_bytes(std::span(outcome)));
  } catch (const Error&) {
    ::_exit(1);
  }
  ::_exit(0);  // skips the test's destructors and reports, which belong to the parent
}

/// Returns the text that the child sent, or how the child ended if it sent none.
std::string outcome_of(pid_t child, const Socket& from, Deadline deadline) {
  std::string text;
  bool late = false;
  try {
    const comm::Bytes bytes = receive(from.get(), std::size_t{1} << 20, deadline);
    text.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  } catch (const Error&) {
    late = true;
    ::kill(child, SIGKILL);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (late) return "killed: it did not come to its end in time";
  if (WIFSIGNALED(status)) return "ended by signal " + std::to_string(WTERMSIG(status));
  if (WEXITSTATUS(status) != 0) return "ended with exit code " + std::to_string(WEXITSTATUS(status));
  return text;
}

}  // namespace

std::array<std::string, 2> run_two_processes(const RankBody& body, std::chrono::milliseconds patience) {
  std::array<Socket, 2> between = make_pair();
  std::array<Socket, 2> to_parent;
  std::array<pid_t, 2> children{};
  for (int rank = 0; rank < 2; ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    std::array<Socket, 2> pair = make_pair();
    children[r] = ::fork();
    if (children[r] < 0) throw Error(Errc::kIo, std::string("fork: ") + std::strerror(errno));
    if (children[r] == 0) {
      between[1 - r] = Socket();  // closed here, so that each child sees when its peer ends
      pair[0] = Socket();
      live(rank, body, between[r], pair[1]);
    }
    to_parent[r] = std::move(pair[0]);
  }
  between = {};
  const Deadline deadline = Deadline::after(patience);
  std::array<std::string, 2> outcomes;
  for (std::size_t r = 0; r < 2; ++r) outcomes[r] = outcome_of(children[r], to_parent[r], deadline);
  return outcomes;
}

}  // namespace hvd::test
