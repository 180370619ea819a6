// A rank's timeline as Chrome trace events, for ui.perfetto.dev or chrome://tracing: pid is the rank, tid
// the thread's role. Events are kept in memory and written when the engine is idle or at the end, never
// inside a step. Times are put on rank 0's clock, so that the ranks' files can be laid over one another.
//
// Threads: add*() from any thread; set_clock() before the first of them; the rest from one thread at a time.
// Source: "Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/deadline.h"
#include "engine/base/mutex.h"
#include "engine/comm/communicator.h"

namespace hvd {

/// "timeline.json", 3 -> "timeline.3.json".
std::string timeline_path(const std::string& filename, int rank);

/// Errors: io when there is something at `path` that is neither empty nor a trace that TraceWriter began: it would be
/// overwritten.
void check_trace_target(const std::string& path);

enum class TraceTrack : std::uint8_t { kCompute = 1, kEngine = 2 };

/// Rank 0's clock minus this rank's, and how wrong that may be.
struct ClockOffset {
  std::chrono::nanoseconds offset{0};
  std::chrono::nanoseconds uncertainty{0};
  Clock::time_point origin;  ///< rank 0's, on rank 0's clock: zero of the timeline
};

/// Collective. The tightest of a few exchanges with rank 0 (Cristian's algorithm): rank 0 reads its clock
/// after it has heard of everybody and before anybody hears of it.
ClockOffset estimate_clock_offset(comm::Communicator& communicator, Patience patience);

class TraceWriter {
 public:
  /// Errors: io when the file cannot be written, or as check_trace_target().
  TraceWriter(const std::string& filename, const comm::Topology& topology);
  /// Writes what is left, as far as the disk takes it.
  ~TraceWriter();
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;

  void set_clock(const ClockOffset& clock);
  void add(TraceTrack track, std::string_view name, Clock::time_point begin, Clock::time_point end,
           std::size_t bytes = 0);
  void add_reduce(std::string_view name, Clock::time_point begin, Clock::time_point end, std::size_t bytes,
                  std::size_t tensors);
  void add_instant(TraceTrack track, std::string_view name, Clock::time_point when);

  /// What ran the reductions from here on: DataPlane::description().
  void set_algorithm(std::string algorithm);
  /// Whether enough has gathered that an idle moment should be used to write it.
  [[nodiscard]] bool wants_writing() const;
  /// What the disk does not take is dropped, and close() tells of it: a run is worth more than its timeline.
  void write();
  /// Writes the rest and completes the file; later events are dropped. Errors: io, e.g. the disk was full.
  void close();

 private:
  enum class Kind : std::uint8_t { kSpan, kReduce, kInstant };
  struct Event {
    Kind kind;
    TraceTrack track;
    std::string name;
    Clock::time_point begin, end;
    std::size_t bytes, tensors;
  };

  void push(Event event);
  void append(std::string& out, const Event& event, const std::string& algorithm) const;
  void put(const std::string& text);

  const std::string path_;
  const int rank_;
  ClockOffset clock_;
  std::ofstream file_;
  bool closed_ = false;
  mutable Mutex mutex_;
  std::vector<Event> events_ HVD_GUARDED_BY(mutex_);
  std::string algorithm_ HVD_GUARDED_BY(mutex_);
};

}  // namespace hvd
