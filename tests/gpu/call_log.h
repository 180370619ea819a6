// Writes down all calls of a FakeRuntime as lines of text. Streams, events, graphs and blocks of memory are numbered in
// the order in which they appear. The same work therefore gives the same lines even if the addresses differ. The test
// owns a CallLog. Only one thread may use it.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/gpu/fake_runtime.h"

namespace hvd::test {

/// In a line, the text after kRemark is a remark for people, which is not compared.
inline constexpr std::string_view kRemark = "   # ";

class CallLog {
 public:
  /// Records the calls of `gpu` until the CallLog is destroyed. `gpu` must outlive the CallLog.
  explicit CallLog(FakeRuntime& gpu);
  CallLog(const CallLog&) = delete;
  CallLog& operator=(const CallLog&) = delete;
  ~CallLog();

  /// Adds a line whose text the caller chooses.
  void say(std::string line) { lines_.push_back(std::move(line)); }
  /// Returns lines such as "copy s0: p1+0:400 > d7+256:400". s0 is a stream, d7 a block of device memory, and p1 a
  /// block of pinned memory.
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
  std::map<const std::byte*, Block> blocks_;  // by the block's first address
  std::map<char, int> used_;                  // [kind]: how many objects of this kind have a number
  std::vector<std::string> lines_;
};

}  // namespace hvd::test
