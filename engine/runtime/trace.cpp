#include "engine/runtime/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <span>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/json.h"

namespace hvd {
namespace {

/// Events are written once there are this many (about 1 MB). A short run has fewer events and writes only at its end.
constexpr std::size_t kWriteAbove = 1 << 13;
constexpr int kClockRounds = 8;

std::int64_t nanoseconds(Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

/// Chrome's times are in microseconds.
std::string microseconds(std::chrono::nanoseconds time) { return json_number(static_cast<double>(time.count()) / 1e3); }

/// A trace is an array of events, whose closing bracket may be missing: so viewers open what a killed rank has written.
constexpr std::string_view kBegin = "[\n{\"cat\":\"hvd_bench\",\"ph\":\"M\",\"name\":\"process_name\",\"pid\":";
/// Traces of version 0.1.0 are objects.
constexpr std::string_view kBeginOfObject = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";

std::ofstream opened(const std::string& path) {
  check_trace_target(path);
  return std::ofstream(path, std::ios::trunc);
}

}  // namespace

std::string timeline_path(const std::string& filename, int rank) {
  std::filesystem::path path(filename);
  const std::string extension = path.extension().string();
  path.replace_extension();
  return fmt::format("{}.{}{}", path.string(), rank, extension);
}

void check_trace_target(const std::string& path) {
  std::error_code ignored;
  const std::filesystem::file_status status = std::filesystem::status(path, ignored);
  if (!std::filesystem::exists(status)) return;
  if (std::filesystem::is_regular_file(status)) {  // do not open a pipe: opening waits for a process at the other end
    if (std::filesystem::file_size(path, ignored) == 0) return;
    std::string begin(std::max(kBegin.size(), kBeginOfObject.size()), '\0');
    std::ifstream(path, std::ios::binary).read(begin.data(), static_cast<std::streamsize>(begin.size()));
    if (begin.starts_with(kBegin) || begin.starts_with(kBeginOfObject)) return;
  }
  throw Error(Errc::kIo, fmt::format("timeline {} exists and is not a trace of hvd_bench; it was not changed: choose "
                                     "another file name (--timeline-filename)",
                                     path));
}

ClockOffset estimate_clock_offset(comm::Communicator& communicator, Patience patience) {
  comm::ControlPlane& control = communicator.control();
  const bool root = communicator.topology().rank == 0;
  ClockOffset best;
  best.uncertainty = std::chrono::nanoseconds::max();
  for (int round = 0; round < kClockRounds; ++round) {
    const Deadline deadline = patience.from_now();
    const auto before = Clock::now();
    control.gather({}, deadline);
    const std::int64_t now = nanoseconds(Clock::now());
    const comm::Bytes reply =
        control.broadcast(root ? std::as_bytes(std::span(&now, 1)) : std::span<const std::byte>{}, 0, deadline);
    const auto after = Clock::now();
    std::int64_t theirs = 0;
    if (reply.size() != sizeof theirs) throw Error(Errc::kBackend, "clock exchange: a reply of the wrong size");
    std::memcpy(&theirs, reply.data(), sizeof theirs);
    if (round == 0) best.origin = Clock::time_point(std::chrono::nanoseconds(theirs));
    const auto half = std::chrono::nanoseconds(after - before) / 2;
    if (half < best.uncertainty) {
      best.uncertainty = half;
      best.offset = std::chrono::nanoseconds(theirs - nanoseconds(before)) - half;
    }
  }
  if (root) best.offset = best.uncertainty = std::chrono::nanoseconds(0);
  return best;
}

TraceWriter::TraceWriter(const std::string& filename, const comm::Topology& topology)
    : path_(timeline_path(filename, topology.rank)), pid_(topology.rank + 1), file_(opened(path_)) {
  clock_.origin = Clock::now();
  const std::string pid = std::to_string(pid_);
  const auto metadata = [&](const char* what, const std::string& tid, const std::string& args) {
    return fmt::format(R"({{"cat":"hvd_bench","ph":"M","name":"{}","pid":{}{},"args":{{{}}}}})", what, pid, tid, args);
  };
  const std::string host = topology.hosts.empty() ? "" : topology.hosts.at(static_cast<std::size_t>(topology.rank));
  put(fmt::format(
      "[\n{},\n{},\n{},\n{}",
      metadata("process_name", "", "\"name\":" + json_string(fmt::format("rank {} on {}", topology.rank, host))),
      metadata("process_sort_index", "", "\"sort_index\":" + pid),
      metadata("thread_name", ",\"tid\":1", "\"name\":\"compute\""),
      metadata("thread_name", ",\"tid\":2", "\"name\":\"engine\"")));
  if (!file_) throw Error(Errc::kIo, fmt::format("timeline {} cannot be written; choose another file name", path_));
}

TraceWriter::~TraceWriter() {
  try {
    close();
  } catch (...) {  // a destructor cannot report the error; callers that need it call close()
    return;
  }
}

void TraceWriter::set_clock(const ClockOffset& clock) { clock_ = clock; }

void TraceWriter::add(TraceTrack track, std::string_view name, Clock::time_point begin, Clock::time_point end,
                      std::size_t bytes) {
  push({Kind::kSpan, track, std::string(name), begin, end, bytes, 0});
}

void TraceWriter::add_reduce(std::string_view name, Clock::time_point begin, Clock::time_point end, std::size_t bytes,
                             std::size_t tensors) {
  push({Kind::kReduce, TraceTrack::kEngine, std::string(name), begin, end, bytes, tensors});
}

void TraceWriter::add_instant(TraceTrack track, std::string_view name, Clock::time_point when) {
  push({Kind::kInstant, track, std::string(name), when, when, 0, 0});
}

void TraceWriter::push(Event event) {
  const MutexLock lock(mutex_);
  events_.push_back(std::move(event));
}

void TraceWriter::set_algorithm(std::string algorithm) {
  const MutexLock lock(mutex_);
  algorithm_ = std::move(algorithm);
}

bool TraceWriter::wants_writing() const {
  const MutexLock lock(mutex_);
  return events_.size() >= kWriteAbove;
}

void TraceWriter::append(std::string& out, const Event& event, const std::string& algorithm) const {
  const auto start = std::chrono::nanoseconds(event.begin - clock_.origin) + clock_.offset;
  out += fmt::format(",\n{{\"pid\":{},\"tid\":{},\"name\":{},\"ts\":{}", pid_, static_cast<int>(event.track),
                     json_string(event.name), microseconds(start));
  if (event.kind == Kind::kInstant) {
    out += R"(,"ph":"i","s":"t"})";
    return;
  }
  out += ",\"ph\":\"X\",\"dur\":" + microseconds(event.end - event.begin);
  if (event.kind == Kind::kReduce) {
    out += fmt::format(R"(,"cat":"reduce","args":{{"bytes":{},"tensors":{},"algorithm":{}}})", event.bytes,
                       event.tensors, json_string(algorithm));
  } else if (event.bytes > 0) {
    out += fmt::format(R"(,"args":{{"bytes":{}}})", event.bytes);
  }
  out += "}";
}

void TraceWriter::write() {
  std::vector<Event> events;
  std::string algorithm;
  {
    const MutexLock lock(mutex_);
    events.swap(events_);
    algorithm = algorithm_;
  }
  std::string text;
  for (const Event& event : events) append(text, event, algorithm);
  put(text);
}

void TraceWriter::close() {
  if (closed_) return;
  closed_ = true;
  write();
  put(
      fmt::format(",\n{{\"ph\":\"M\",\"pid\":{},\"name\":\"clock_sync_estimate\",\"args\":{{\"offset_ns\":{},"
                  "\"uncertainty_ns\":{}}}}}\n]\n",
                  pid_, clock_.offset.count(), clock_.uncertainty.count()));
  file_.close();
  if (file_.fail())
    throw Error(Errc::kIo, fmt::format("timeline {} is incomplete: writing failed; is the disk full?", path_));
}

void TraceWriter::put(const std::string& text) {
  file_ << text;
  file_.flush();
}

}  // namespace hvd
