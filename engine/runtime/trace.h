// Writes a rank's timeline as Chrome trace events, for ui.perfetto.dev or chrome://tracing. pid is the rank plus 1,
// because viewers take pid 0 for the idle process; tid is the thread's role. Events are kept in memory and written when
// the engine is idle or at the end, never inside a step. Times are converted to rank 0's clock, so that the files of
// all ranks can be overlaid.
//
// Threads: any thread may call add*(), after set_clock(). Only one thread at a time may call the other methods.
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

/// Inserts the rank into the file name: "timeline.json", 3 -> "timeline.3.json".
std::string timeline_path(const std::string& filename, int rank);

/// Errors: io if `path` exists and is neither empty nor a trace of TraceWriter, because it would be overwritten.
void check_trace_target(const std::string& path);

enum class TraceTrack : std::uint8_t { kCompute = 1, kEngine = 2 };

/// The difference between rank 0's clock and this rank's clock, and the uncertainty of the difference.
struct ClockOffset {
  std::chrono::nanoseconds offset{0};
  std::chrono::nanoseconds uncertainty{0};
  Clock::time_point origin;  ///< zero of the timeline, on rank 0's clock; equal on all ranks
};

/// Collective. Exchanges clock readings with rank 0 a few times (Cristian's algorithm) and returns the result with the
/// smallest uncertainty. Each time, rank 0 reads its clock after all ranks' messages have arrived, and then answers.
ClockOffset estimate_clock_offset(comm::Communicator& communicator, Patience patience);

class TraceWriter {
 public:
  /// Errors: io if the file cannot be written; those of check_trace_target().
  TraceWriter(const std::string& filename, const comm::Topology& topology);
  /// Calls close() and ignores its errors.
  ~TraceWriter();
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;

  void set_clock(const ClockOffset& clock);
  void add(TraceTrack track, std::string_view name, Clock::time_point begin, Clock::time_point end,
           std::size_t bytes = 0);
  void add_reduce(std::string_view name, Clock::time_point begin, Clock::time_point end, std::size_t bytes,
                  std::size_t tensors);
  void add_instant(TraceTrack track, std::string_view name, Clock::time_point when);

  /// Sets the name of the algorithm that is written with each reduction. Pass DataPlane::description().
  void set_algorithm(std::string algorithm);
  /// Returns true if there are so many events that an idle thread should call write().
  [[nodiscard]] bool wants_writing() const;
  /// Writes the events so far. A failure does not end the run: the events are dropped, and close() reports the failure.
  void write();
  /// Writes the remaining events and completes the file; later events are dropped. Errors: io, e.g. for a full disk.
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
  const int pid_;
  ClockOffset clock_;
  std::ofstream file_;
  bool closed_ = false;
  mutable Mutex mutex_;
  std::vector<Event> events_ HVD_GUARDED_BY(mutex_);
  std::string algorithm_ HVD_GUARDED_BY(mutex_);
};

}  // namespace hvd
