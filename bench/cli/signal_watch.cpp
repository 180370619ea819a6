#include "bench/cli/signal_watch.h"

#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <optional>
#include <utility>

#include "engine/base/deadline.h"
#include "engine/base/error.h"

namespace hvd::bench {
namespace {

constexpr std::array kSignals{SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU};

sigset_t ignored_now() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : kSignals) {
    struct sigaction action {};
    if (::sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN) sigaddset(&set, number);
  }
  return set;
}

/// Signals that the parent process ignored: nohup ignores SIGHUP, and a shell ignores SIGINT for a background job. The
/// function reads them once, before any library runs, because UCX, which Open MPI loads, installs a handler for SIGHUP.
const sigset_t& ignored_by_parent() {
  static const sigset_t set = ignored_now();
  return set;
}

void ask_first(int /*argc*/, char** /*argv*/, char** /*environment*/) { ignored_by_parent(); }
// The dynamic linker calls the functions of this section before the constructors of the shared libraries.
[[gnu::section(".preinit_array"), gnu::used]] void (*const kAskFirst)(int, char**, char**) = ask_first;

/// Signals that the program waits for: all but the ignored ones. An ignored signal must not be blocked, because the
/// descriptor receives every blocked signal, even an ignored one.
sigset_t watched() {
  const sigset_t ignored = ignored_now();
  sigset_t set;
  sigemptyset(&set);
  for (const int number : kSignals) {
    if (sigismember(&ignored, number) == 0 && sigismember(&ignored_by_parent(), number) == 0) sigaddset(&set, number);
  }
  return set;
}

std::string name_of(int signal_number) {
  switch (signal_number) {
    case SIGTERM: return "SIGTERM";
    case SIGINT: return "SIGINT";
    case SIGHUP: return "SIGHUP";
    case SIGUSR1: return "SIGUSR1";
    case SIGUSR2: return "SIGUSR2";
    case SIGXCPU: return "SIGXCPU";
    default: return "signal " + std::to_string(signal_number);
  }
}

/// Milliseconds for poll(), rounded up; -1 without a deadline.
int poll_time(const std::optional<Deadline>& deadline) {
  if (!deadline) return -1;
  return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(deadline->remaining()).count());
}

}  // namespace

bool is_announcement(int signal_number) {
  return signal_number == SIGUSR1 || signal_number == SIGUSR2 || signal_number == SIGXCPU;
}

void SignalWatch::block() {
  for (const int number : kSignals) {
    if (sigismember(&ignored_by_parent(), number) == 1) std::signal(number, SIG_IGN);  // removes a library's handler
  }
  const sigset_t set = watched();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

SignalWatch::SignalWatch(Callbacks callbacks) : callbacks_(std::move(callbacks)) {
  const sigset_t set = watched();
  signals_ = ::signalfd(-1, &set, SFD_CLOEXEC);
  wake_ = ::eventfd(0, EFD_CLOEXEC);
  if (signals_ < 0 || wake_ < 0) {
    throw Error(Errc::kIo, fmt::format("signals cannot be watched ({}); raise ulimit -n", std::strerror(errno)));
  }
  thread_ = std::thread([this] { watch(); });
}

SignalWatch::~SignalWatch() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_, &one, sizeof one);
  thread_.join();
  ::close(signals_);
  ::close(wake_);
}

std::string SignalWatch::requested() const {
  const MutexLock lock(mutex_);
  return requested_;
}

bool SignalWatch::wait(std::chrono::milliseconds time) const {
  const Deadline deadline = Deadline::after(time);
  const MutexLock lock(mutex_);
  while (requested_.empty()) {
    if (!arrived_.wait_until(mutex_, deadline.when())) break;
  }
  return !requested_.empty();
}

void SignalWatch::note(int signal_number) {
  const MutexLock lock(mutex_);
  if (requested_.empty()) requested_ = name_of(signal_number);
  arrived_.notify_all();
}

void SignalWatch::watch() {
  std::optional<Deadline> deadline;  // starts with the first signal
  bool threatened = false;           // a signal other than an announcement has come
  std::string again;
  while (true) {
    std::array<pollfd, 2> descriptors{{{signals_, POLLIN, 0}, {wake_, POLLIN, 0}}};
    const int ready = ::poll(descriptors.data(), descriptors.size(), poll_time(deadline));
    if (ready < 0) continue;  // EINTR, for example from a debugger
    if (descriptors[1].revents != 0) return;
    if (ready == 0) break;  // the grace time is over
    signalfd_siginfo info{};
    if (::read(signals_, &info, sizeof info) != static_cast<ssize_t>(sizeof info)) continue;
    const int number = static_cast<int>(info.ssi_signo);
    const bool threat = !is_announcement(number);
    if (threat && threatened) {
      again = ", twice";
      break;
    }
    if (!threat && deadline) continue;
    threatened = threat;
    deadline = Deadline::after(callbacks_.grace(number));
    note(number);
  }
  callbacks_.overdue(requested() + again);
}

}  // namespace hvd::bench
