// Writes down all calls of a FakeRuntime as lines of text. Streams, events, graphs and blocks of memory are numbered in
// the order in which they appear, so that equal work gives equal lines at other addresses. The test owns a CallLog; one
// thread uses it.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/gpu/fake_runtime.h"

namespace hvd::test {

/// Separates a line from a remark for people, which is not compared.
inline constexpr std::string_view kRemark = "   # ";

class CallLog {
 public:
  /// Records the calls of `gpu` until the CallLog is destroyed. `gpu` must live longer.
  explicit CallLog(FakeRuntime& gpu);
  CallLog(const CallLog&) = delete;
  CallLog& operator=(const CallLog&) = delete;
  ~CallLog();

  /// Adds a line that the caller wrote.
  void say(std::string line) { lines_.push_back(std::move(line)); }
  /// A line is such as "copy s0: p1+0:400 > d7+256:400". d and p are blocks of device memory and of pinned memory.
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
  std::map<char, int> used_;                  // [kind] how many numbers are given
  std::vector<std::string> lines_;
};

}  // namespace hvd::test
