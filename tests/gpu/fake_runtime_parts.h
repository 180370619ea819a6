// State that the fake GPU's streams and events share with its graphs.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "tests/gpu/fake_runtime.h"

namespace hvd::test {

/// A capture in progress: numbered pieces of work, and for each piece the numbers of the pieces that it waits for.
struct FakeRuntime::Recording {
  struct Node {
    std::shared_ptr<const Work> work;
    std::size_t line = 0;
    std::vector<std::size_t> waits_for;
    FakeEvent* outside = nullptr;
    bool high_priority = false;
  };
  FakeStream* origin = nullptr;
  std::vector<Node> nodes;
  std::map<FakeStream*, std::size_t> lines;  // lines of the graph, one per stream that takes part
};

struct FakeRuntime::FakeStream {
  std::size_t line = 0;
  bool high_priority = false;
  std::vector<OpRef> tail;  // work that the stream's next work waits for
  std::shared_ptr<Recording> recording;
  std::vector<std::size_t> recorded_tail;
};

struct FakeRuntime::FakeEvent {
  bool timing = false;
  OpRef op;
  std::weak_ptr<Recording> recording;  // the capture in which it was last recorded
  bool edge = false;                   // true: it was last recorded inside a capture
  std::vector<std::size_t> recorded;
};

struct FakeRuntime::FakeGraph {
  std::vector<Recording::Node> nodes;
  std::size_t lines = 0;
  std::vector<std::size_t> line_of;  // [line of the graph] its line in the world
  OpRef last;                        // the end of the last launch
};

}  // namespace hvd::test
