// shaped_switch PORTS LATENCY_US RATE_MBIT PREFIX: an Ethernet switch in user space whose links have a rate and a
// latency. Creates TAP devices PREFIX1 .. PREFIXn with the addresses 02:00:00:00:hh:ll (port number), prints "ready",
// and forwards until it is killed. The link of a port carries RATE_MBIT (0: no limit) in each direction, and a frame
// arrives LATENCY_US after it was sent. No frame is lost. Frames of up to 64 KiB pass unsplit (segmentation offload),
// and take the time of the Ethernet frames that a real link would carry in their place. One thread. hvnet/network.py
// runs the program inside its own namespaces.
//
// A link is a clock that says when it will be free. A frame that finds the link busy begins when it is free, however
// late this program comes to send it. So a delay of this program delays frames, but takes nothing of the rate. A token
// bucket (tc-tbf) loses tokens when it is full: with a small bucket the rate falls on a busy machine, with a large one
// a burst passes at no cost.
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
#include <cstdint>
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
constexpr std::size_t kSegmentBytes = 4;   // in this header: where the payload of a segment is stated, 16 bits
constexpr std::size_t kHeaders = 66;       // of a segment: 14 of Ethernet, 20 of IPv4, 32 of TCP with time stamps
constexpr std::size_t kMaxFrame = 70000;   // 64 KiB of payload and its headers
constexpr std::size_t kMinFrame = kVirtioHeader + 14;
constexpr std::chrono::microseconds kEarly{20};  // frames that are due so soon are sent together, to wake up less often
constexpr int kFramesPerTurn = 16;  // the switch forwards up to this many frames of one port, then serves the next port

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error(what + ": " + std::strerror(errno)); }

struct Frame {
  Clock::time_point due;  ///< when it goes on
  nanoseconds duration;   ///< on a wire
  std::vector<std::byte> bytes;

  /// Returns the Ethernet frame.
  [[nodiscard]] std::span<const std::byte> ethernet() const { return std::span(bytes).subspan(kVirtioHeader); }
};

using Frames = std::deque<Frame>;  // ascending by `due`

/// One direction of the link between a port and its node.
class Wire {
 public:
  /// Returns when a frame begins that could begin at `earliest` and takes `duration`.
  Clock::time_point begin(Clock::time_point earliest, nanoseconds duration) {
    const auto begin = std::max(earliest, free_at_);
    free_at_ = begin + duration;
    return begin;
  }

 private:
  Clock::time_point free_at_{};
};

/// Returns how many bytes a link carries for `packet`, a virtio header and a frame that may be several segments.
std::size_t bytes_on_wire(std::span<const std::byte> packet) {
  std::uint16_t segment = 0;
  std::memcpy(&segment, &packet[kSegmentBytes], sizeof segment);  // in the host's order
  const std::size_t frame = packet.size() - kVirtioHeader;
  if (segment == 0 || frame <= kHeaders) return frame;
  const std::size_t payload = frame - kHeaders;
  return payload + (payload + segment - 1) / segment * kHeaders;
}

/// Returns true for a segment of TCP without data. Queued behind the data that its sender sends meanwhile, it would
/// hold up the other side. In a real host it passes most of them, because the kernel keeps the queue of a network card
/// short.
bool is_acknowledgement(std::span<const std::byte> frame) {
  constexpr std::size_t kEthernet = 14, kSmallest = kEthernet + 20 + 20;  // with the headers of IPv4 and TCP
  const auto byte = [frame](std::size_t at) { return std::to_integer<std::size_t>(frame[at]); };
  const bool is_tcp = frame.size() >= kSmallest && byte(12) == 8 && byte(13) == 0 && byte(kEthernet + 9) == 6;
  if (!is_tcp) return false;
  const std::size_t ip_header = 4 * (byte(kEthernet) & 15);
  const std::size_t offset = kEthernet + ip_header + 12;
  if (offset >= frame.size()) return false;
  return (byte(kEthernet + 2) << 8 | byte(kEthernet + 3)) == ip_header + 4 * (byte(offset) >> 4);
}

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
      : coming(std::move(other.coming)),
        descriptor_(std::exchange(other.descriptor_, -1)),
        queue_(std::move(other.queue_)),
        unqueued_(std::move(other.unqueued_)),
        from_node_(other.from_node_),
        to_node_(other.to_node_) {}
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;
  Port& operator=(Port&&) = delete;

  [[nodiscard]] int descriptor() const { return descriptor_; }

  /// Takes a frame of this port's node, which reaches the switch `latency` after its turn on the wire.
  void take(std::span<const std::byte> packet, Clock::time_point now, nanoseconds duration, nanoseconds latency) {
    coming.push_back({from_node_.begin(now, duration) + latency, duration, {packet.begin(), packet.end()}});
  }

  /// Queues a frame for this port's node, which begins now or when the wire is free, and has then arrived after its
  /// duration. A switch forwards a frame while the frame still comes in (cut-through), so this time counts once.
  void enqueue(const Frame& frame) {
    queue_.push_back({to_node_.begin(frame.due, frame.duration) + frame.duration, frame.duration, frame.bytes});
  }

  /// Sends a frame at `due`, past those that wait for the wire.
  void pass(std::span<const std::byte> packet, Clock::time_point due) {
    unqueued_.push_back({due, {}, {packet.begin(), packet.end()}});
  }

  /// Sends all frames that are due. Returns the time at which the next frame is due.
  std::optional<Clock::time_point> send_due(Clock::time_point now) {
    std::optional<Clock::time_point> next;
    for (Frames* const frames : {&unqueued_, &queue_}) {
      while (!frames->empty() && frames->front().due <= now) {
        const std::vector<std::byte>& bytes = frames->front().bytes;
        // EIO and EINVAL mean that the device is down or not up yet. A hardware switch would also drop the frame.
        if (::write(descriptor_, bytes.data(), bytes.size()) < 0 && errno != EIO && errno != EINVAL) fail("write");
        frames->pop_front();
      }
      if (!frames->empty() && (!next || frames->front().due < *next)) next = frames->front().due;
    }
    if (!coming.empty() && (!next || coming.front().due < *next)) next = coming.front().due;
    return next;
  }

  Frames coming;  ///< from this port's node. Each is forwarded when it is due, so that frames of several nodes meet in
                  ///< the order in which they arrive

 private:
  int descriptor_;
  Frames queue_, unqueued_;
  Wire from_node_, to_node_;
};

class Switch {
 public:
  Switch(std::size_t ports, nanoseconds latency, double megabits, const std::string& prefix)
      : latency_(latency), nanoseconds_per_byte_(megabits > 0 ? 8e3 / megabits : 0) {
    for (std::size_t i = 1; i <= ports; ++i) ports_.emplace_back(i, prefix + std::to_string(i));
    polled_.resize(ports);
  }

  [[noreturn]] void run() {
    for (;;) {
      std::optional<Clock::time_point> next;
      const auto now = Clock::now() + kEarly;
      for (std::size_t i = 0; i < ports_.size(); ++i) {
        for (Frames& coming = ports_[i].coming; !coming.empty() && coming.front().due <= now; coming.pop_front()) {
          const Frame& frame = coming.front();
          to_others(i, frame.ethernet(), [&frame](Port& port) { port.enqueue(frame); });
        }
      }
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

  void forward(std::size_t from, std::span<const std::byte> packet) {
    const auto now = Clock::now();
    if (const auto frame = packet.subspan(kVirtioHeader); is_acknowledgement(frame)) {
      to_others(from, frame, [&](Port& port) { port.pass(packet, now + latency_); });
      return;
    }
    const auto bytes = static_cast<double>(bytes_on_wire(packet));
    const nanoseconds duration(static_cast<std::int64_t>(nanoseconds_per_byte_ * bytes));
    ports_[from].take(packet, now, duration, latency_);
  }

  /// Calls `send` with each port to which a frame goes.
  template <class Send>
  void to_others(std::size_t from, std::span<const std::byte> frame, const Send& send) {
    const bool to_all = (frame[0] & std::byte{1}) != std::byte{0};
    const auto port = std::to_integer<std::size_t>(frame[4]) << 8 | std::to_integer<std::size_t>(frame[5]);
    for (std::size_t i = 0; i < ports_.size(); ++i) {
      if (i != from && (to_all || i + 1 == port)) send(ports_[i]);
    }
  }

  std::vector<Port> ports_;
  nanoseconds latency_;
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
    std::fputs("usage: shaped_switch PORTS LATENCY_US RATE_MBIT PREFIX\n", stderr);
    return 2;
  }
  try {
    ::prctl(PR_SET_TIMERSLACK, 1UL);
    // Run with a higher priority than the ranks that use the switch. If that is not allowed, latencies vary more.
    sched_param priority{};
    priority.sched_priority = 10;
    ::sched_setscheduler(0, SCHED_FIFO, &priority);
    const auto latency = std::chrono::duration<double, std::micro>(number<double>(arguments[1], 0, 1e7));
    Switch fabric(number<std::size_t>(arguments[0], 1, 1000), std::chrono::duration_cast<nanoseconds>(latency),
                  number<double>(arguments[2], 0, 1e6), arguments[3]);
    std::puts("ready");
    std::fflush(stdout);
    fabric.run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "shaped_switch: %s\n", error.what());
    return 2;
  }
}
