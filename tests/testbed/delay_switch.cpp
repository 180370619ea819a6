// delay_switch PORTS DELAY_US RATE_MBIT PREFIX: an Ethernet switch in user space that adds latency, for kernels
// without sch_netem. Creates TAP devices PREFIX1 .. PREFIXn with the addresses 02:00:00:00:hh:ll (port number), prints
// "ready", and forwards until it is killed. Every frame leaves at least DELAY_US after it arrived. Each output port
// sends no faster than RATE_MBIT (0: no limit): frames for the port wait in its queue, and no frame is lost. A second
// limit, which hvnet/network.py sets at each sender (tc tbf), slows the sender's TCP down. Frames of up to 64 KiB pass
// unsplit (segmentation offload). The program has one thread. hvnet/network.py runs it inside its own namespaces.
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <deque>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::nanoseconds;

constexpr std::size_t kVirtioHeader = 10;  // IFF_VNET_HDR: struct virtio_net_hdr before every frame
constexpr std::size_t kMaxFrame = 70000;   // 64 KiB of payload and its headers
constexpr std::size_t kMinFrame = kVirtioHeader + 14;
constexpr int kFramesPerTurn = 16;  // the switch forwards up to this many frames of one port, then serves the next port

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error(what + ": " + std::strerror(errno)); }

struct Frame {
  Clock::time_point due;
  std::vector<std::byte> bytes;
};

class Port {
 public:
  Port(std::size_t number, const std::string& name) : descriptor_(::open("/dev/net/tun", O_RDWR | O_NONBLOCK)) {
    if (descriptor_ < 0) fail("/dev/net/tun");
    ifreq request{};
    request.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
    name.copy(request.ifr_name, IFNAMSIZ - 1);
    if (::ioctl(descriptor_, TUNSETIFF, &request) != 0) fail(name + ": cannot be made (TUNSETIFF)");
    if (::ioctl(descriptor_, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6) != 0) fail(name + ": TUNSETOFFLOAD");
    const std::array<unsigned char, 6> address{
        2, 0, 0, 0, static_cast<unsigned char>(number >> 8), static_cast<unsigned char>(number & 255)};
    request.ifr_hwaddr.sa_family = ARPHRD_ETHER;
    std::memcpy(request.ifr_hwaddr.sa_data, address.data(), address.size());
    if (::ioctl(descriptor_, SIOCSIFHWADDR, &request) != 0) fail(name + ": SIOCSIFHWADDR");
  }
  ~Port() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  Port(Port&& other) noexcept
      : descriptor_(std::exchange(other.descriptor_, -1)), queue_(std::move(other.queue_)), free_at_(other.free_at_) {}
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;
  Port& operator=(Port&&) = delete;

  [[nodiscard]] int descriptor() const { return descriptor_; }

  /// Queues a frame, which leaves at least `on_wire` after the frame before it. This time separates frames of several
  /// senders; the limit at the sender already separates frames of one sender.
  void enqueue(std::span<const std::byte> bytes, Clock::time_point earliest, nanoseconds on_wire) {
    free_at_ = std::max(earliest, free_at_ + on_wire);
    queue_.push_back({free_at_, {bytes.begin(), bytes.end()}});
  }

  /// Sends all frames that are due. Returns the time at which the next frame is due.
  std::optional<Clock::time_point> send_due(Clock::time_point now) {
    while (!queue_.empty() && queue_.front().due <= now) {
      const std::vector<std::byte>& bytes = queue_.front().bytes;
      // EIO and EINVAL mean that the device is down or not up yet. A hardware switch would also drop the frame.
      if (::write(descriptor_, bytes.data(), bytes.size()) < 0 && errno != EIO && errno != EINVAL) fail("write");
      queue_.pop_front();
    }
    if (queue_.empty()) return std::nullopt;
    return queue_.front().due;
  }

 private:
  int descriptor_;
  std::deque<Frame> queue_;
  Clock::time_point free_at_{};
};

class Switch {
 public:
  Switch(std::size_t ports, nanoseconds delay, double megabits, const std::string& prefix)
      : delay_(delay), nanoseconds_per_byte_(megabits > 0 ? 8e3 / megabits : 0) {
    for (std::size_t i = 1; i <= ports; ++i) ports_.emplace_back(i, prefix + std::to_string(i));
    polled_.resize(ports);
  }

  [[noreturn]] void run() {
    for (;;) {
      std::optional<Clock::time_point> next;
      const auto now = Clock::now();
      for (std::size_t i = 0; i < ports_.size(); ++i) {
        const auto due = ports_[i].send_due(now);
        if (due && (!next || *due < *next)) next = due;
        polled_[i] = {ports_[i].descriptor(), POLLIN, 0};
      }
      timespec wait{};
      if (next) {
        const auto left = std::max(nanoseconds(0), nanoseconds(*next - Clock::now()));
        wait = {left.count() / 1'000'000'000, left.count() % 1'000'000'000};
      }
      if (::ppoll(polled_.data(), polled_.size(), next ? &wait : nullptr, nullptr) <= 0) continue;
      for (std::size_t i = 0; i < ports_.size(); ++i) {
        if ((polled_[i].revents & POLLIN) != 0) receive(i);
      }
    }
  }

 private:
  void receive(std::size_t from) {
    for (int k = 0; k < kFramesPerTurn; ++k) {
      const ssize_t length = ::read(ports_[from].descriptor(), buffer_.data(), buffer_.size());
      if (length < static_cast<ssize_t>(kMinFrame)) return;
      forward(from, std::span(buffer_).first(static_cast<std::size_t>(length)));
    }
  }

  void forward(std::size_t from, std::span<const std::byte> bytes) {
    const auto earliest = Clock::now() + delay_;
    const auto frame = bytes.subspan(kVirtioHeader);
    const nanoseconds on_wire(static_cast<std::int64_t>(nanoseconds_per_byte_ * static_cast<double>(frame.size())));
    const bool to_all = (frame[0] & std::byte{1}) != std::byte{0};
    const auto port = std::to_integer<std::size_t>(frame[4]) << 8 | std::to_integer<std::size_t>(frame[5]);
    for (std::size_t i = 0; i < ports_.size(); ++i) {
      if (i != from && (to_all || i + 1 == port)) ports_[i].enqueue(bytes, earliest, on_wire);
    }
  }

  std::vector<Port> ports_;
  nanoseconds delay_;
  double nanoseconds_per_byte_;
  std::vector<pollfd> polled_;
  std::vector<std::byte> buffer_ = std::vector<std::byte>(kMaxFrame);
};

template <class T>
T number(std::string_view text, T low, T high) {
  T value{};
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc() || end != text.data() + text.size() || value < low || value > high) {
    errno = EINVAL;
    fail("'" + std::string(text) + "'");
  }
  return value;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() != 4) {
    std::fputs("usage: delay_switch PORTS DELAY_US RATE_MBIT PREFIX\n", stderr);
    return 2;
  }
  try {
    ::prctl(PR_SET_TIMERSLACK, 1UL);
    // Run with a higher priority than the ranks that use the switch. If that is not allowed, latencies vary more.
    sched_param priority{};
    priority.sched_priority = 10;
    ::sched_setscheduler(0, SCHED_FIFO, &priority);
    const auto delay = std::chrono::duration<double, std::micro>(number<double>(arguments[1], 0, 1e7));
    Switch fabric(number<std::size_t>(arguments[0], 1, 1000), std::chrono::duration_cast<nanoseconds>(delay),
                  number<double>(arguments[2], 0, 1e6), arguments[3]);
    std::puts("ready");
    std::fflush(stdout);
    fabric.run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "delay_switch: %s\n", error.what());
    return 2;
  }
}
