// The captures and the graphs of the fake GPU.
#include <algorithm>
#include <set>
#include <utility>

#include "tests/gpu/fake_runtime_parts.h"

namespace hvd::test {

bool FakeRuntime::capturing(gpu::StreamView stream) {
  const MutexLock lock(mutex_);
  return find(stream).recording != nullptr;
}

bool FakeRuntime::captured_here() {
  return std::any_of(streams_.begin(), streams_.end(), [](const auto& stream) {
    const std::shared_ptr<Recording>& recording = stream.second->recording;
    return recording && recording->thread == std::this_thread::get_id();
  });
}

void FakeRuntime::begin_capture(gpu::StreamView stream) {
  if (on_capture) on_capture();
  tell({.what = "begin capture", .stream = stream.native});
  const MutexLock lock(mutex_);
  FakeStream& its = find(stream);
  if (its.recording) refuse("a stream that is captured already");
  its.recording = std::make_shared<Recording>();
  its.recording->origin = &its;
  its.recording->lines.emplace(&its, 0);
  its.recorded_tail.clear();
}

void FakeRuntime::drop_recording(FakeStream& stream) {
  const std::shared_ptr<Recording> recording = stream.recording;
  if (!recording) return;
  for (const auto& [joined, line] : recording->lines) {
    joined->recording = nullptr;
    joined->recorded_tail.clear();
  }
}

gpu::Graph FakeRuntime::end_capture(gpu::StreamView stream) {
  auto graph = std::make_unique<FakeGraph>();
  const gpu::GraphView view{graph.get()};
  tell({.what = "end capture", .stream = stream.native, .object = view.native});
  const MutexLock lock(mutex_);
  FakeStream& its = find(stream);
  if (!its.recording || its.recording->origin != &its) refuse("the capture did not begin on this stream");
  if (its.recording->thread != std::this_thread::get_id()) refuse("the capture began on another thread");
  const std::shared_ptr<Recording> recording = its.recording;
  std::set<std::size_t> joined(its.recorded_tail.begin(), its.recorded_tail.end());
  for (auto node = joined.rbegin(); node != joined.rend(); ++node) {
    const auto& before = recording->nodes[*node].waits_for;
    // The loop descends, and all inserted numbers are smaller than *node, so it visits the inserted numbers too.
    joined.insert(before.begin(), before.end());
  }
  std::string missing;
  for (const auto& [other, line] : recording->lines) {
    for (const std::size_t node : other->recorded_tail) {
      if (joined.count(node) == 0) missing = recording->nodes[node].work->label;
    }
  }
  drop_recording(its);
  if (!missing.empty()) refuse("end of a capture without a join: nothing waits for '" + missing + "'");
  graph->nodes = recording->nodes;
  graph->lines = recording->lines.size();
  for (std::size_t i = 0; i < graph->lines; ++i) graph->line_of.push_back(world_.add_line());
  graphs_.emplace(view.native, std::move(graph));
  return {*this, view};
}

std::optional<gpu::GraphShape> FakeRuntime::shape(gpu::GraphView graph) {
  const MutexLock lock(mutex_);
  const std::vector<Recording::Node>& nodes = find(graph).nodes;
  gpu::GraphShape shape;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const std::string& label = nodes[i].work->label;
    if (label == "copy") {
      ++shape.copies;
    } else if (label == "fill") {
      ++shape.fills;
    } else if (label == "event") {
      ++shape.events;
    } else {
      ++shape.kernels;
      shape.high_priority += nodes[i].high_priority ? 1 : 0;
    }
    const std::vector<std::size_t> before = i == 0 ? std::vector<std::size_t>{} : std::vector{i - 1};
    shape.in_a_row = shape.in_a_row && nodes[i].waits_for == before;
  }
  return shape;
}

void FakeRuntime::abandon_capture(gpu::StreamView stream) noexcept {
  tell({.what = "abandon capture", .stream = stream.native});
  const MutexLock lock(mutex_);
  const auto found = streams_.find(stream.native);
  if (found != streams_.end()) drop_recording(*found->second);
}

void FakeRuntime::launch(gpu::GraphView graph, gpu::StreamView stream) {
  if (on_launch) on_launch();
  tell({.what = "launch", .stream = stream.native, .object = graph.native});
  await_room();
  const MutexLock lock(mutex_);
  FakeStream& its = find(stream);
  FakeGraph& launched = find(graph);
  if (its.recording) refuse("a graph is launched into a captured stream");
  std::vector<OpRef> before = std::move(its.tail);
  if (launched.last) before.push_back(launched.last);
  const OpRef begin = world_.enqueue(id_, its.line, nullptr, std::move(before), 0);
  std::vector<OpRef> ops, all{begin};
  for (const Recording::Node& node : launched.nodes) {
    std::vector<OpRef> waits_for{begin};
    for (const std::size_t earlier : node.waits_for) waits_for.push_back(ops[earlier]);
    ops.push_back(
        world_.enqueue(id_, launched.line_of[node.line], node.work, std::move(waits_for), FakeWorld::kGraphNode));
    if (node.outside != nullptr) node.outside->op = ops.back();
    all.push_back(ops.back());
  }
  launched.last = world_.enqueue(id_, its.line, nullptr, std::move(all));
  its.tail = {launched.last};
}

}  // namespace hvd::test
