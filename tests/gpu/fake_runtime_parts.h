// State that the fake GPU's streams and events share with its graphs.
#pragma once

#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "tests/gpu/fake_runtime.h"

namespace hvd::test {

/// A capture in progress. Its pieces of work are numbered. Each piece has the numbers of the pieces that it waits for.
struct FakeRuntime::Recording {
  struct Node {
    std::shared_ptr<const Work> work;
    std::size_t line = 0;
    std::vector<std::size_t> waits_for;
    FakeEvent* outside = nullptr;
    bool high_priority = false;
  };
  FakeStream* origin = nullptr;
  std::thread::id thread = std::this_thread::get_id();  // the thread that captures
  std::vector<Node> nodes;
  std::map<FakeStream*, std::size_t> lines;  // the graph's lines of work, one for each stream that takes part
};

struct FakeRuntime::FakeStream {
  std::size_t line = 0;
  bool high_priority = false;
  std::vector<OpRef> tail;  // the stream's next work waits for these
  std::shared_ptr<Recording> recording;
  std::vector<std::size_t> recorded_tail;
};

struct FakeRuntime::FakeEvent {
  bool timing = false;
  OpRef op;
  std::weak_ptr<Recording> recording;  // the capture in which the event was last recorded
  bool edge = false;                   // true: the event was last recorded inside a capture
  std::vector<std::size_t> recorded;
};

struct FakeRuntime::FakeGraph {
  std::vector<Recording::Node> nodes;
  std::size_t lines = 0;
  std::vector<std::size_t> line_of;  // [line of the graph]: the line of the world that it uses
  OpRef last;                        // the last work of the last launch
};

}  // namespace hvd::test
