// All calls of a FakeRuntime as lines of text that are equal for equal work, whatever addresses it has: streams,
// events, graphs and blocks of memory have numbers, in the order in which they appear. Lives as long as the calls that
// it is to see; one thread.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/gpu/fake_runtime.h"

namespace hvd::test {

/// What follows it in a line is for people, and no part of the log.
inline constexpr std::string_view kRemark = "   # ";

class CallLog {
 public:
  /// From now on. `gpu` outlives it.
  explicit CallLog(FakeRuntime& gpu);
  CallLog(const CallLog&) = delete;
  CallLog& operator=(const CallLog&) = delete;
  ~CallLog();

  /// What the caller does, between the calls.
  void say(std::string line) { lines_.push_back(std::move(line)); }
  /// "copy s0: p1+0:400 > d7+256:400"; d and p are blocks of device memory and of pinned memory.
  [[nodiscard]] const std::vector<std::string>& lines() const noexcept { return lines_; }

 private:
  struct Block {
    std::string name;
    std::size_t bytes = 0;
  };
  void take(const FakeCall& call);
  std::string name(char kind, const void* object);
  [[nodiscard]] std::string text(Range range) const;
  [[nodiscard]] std::string text(const std::vector<Range>& ranges) const;

  FakeRuntime& gpu_;
  std::map<std::pair<char, const void*>, std::string> names_;
  std::map<const std::byte*, Block> blocks_;  // by first address
  std::map<char, int> used_;                  // by kind: numbers given
  std::vector<std::string> lines_;
};

}  // namespace hvd::test
