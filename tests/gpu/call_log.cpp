#include "tests/gpu/call_log.h"

#include <iterator>

namespace hvd::test {

CallLog::CallLog(FakeRuntime& gpu) : gpu_(gpu) {
  gpu.on_call = [this](const FakeCall& call) { take(call); };
}

CallLog::~CallLog() { gpu_.on_call = nullptr; }

void CallLog::take(const FakeCall& call) {
  std::string line = call.what;
  if (call.stream != nullptr) line += " " + name('s', call.stream);
  if (call.what.starts_with("allocate")) {
    const Range made = call.writes.at(0);
    const char kind = call.what == "allocate" ? 'd' : 'p';
    blocks_[made.data()] = {kind + std::to_string(used_[kind]++), made.size()};
  }
  if (call.object != nullptr) {
    const bool stream = call.what.find("stream") != std::string::npos;
    const bool graph = call.what == "destroy graph" || call.what == "end capture" || call.what == "launch";
    const char kind = stream ? 's' : graph ? 'g' : 'e';
    line += " " + name(kind, call.object);
    if (call.what.starts_with("destroy")) names_.erase({kind, call.object});
  }
  const std::string reads = text(call.reads), writes = text(call.writes);
  if (!reads.empty() || !writes.empty()) line += ":" + reads + " >" + writes;
  if (call.what == "free") blocks_.erase(call.writes.at(0).data());
  if (!call.detail.empty()) line += std::string(kRemark) + call.detail;
  lines_.push_back(std::move(line));
}

// take() forgets the names of destroyed objects. A new object at the address of a destroyed object therefore gets a new
// number.
std::string CallLog::name(char kind, const void* object) {
  const auto [found, first] = names_.try_emplace({kind, object});
  if (first) found->second = kind + std::to_string(used_[kind]++);
  return found->second;
}

std::string CallLog::text(Range range) const {
  auto block = blocks_.upper_bound(range.data());
  if (block != blocks_.begin()) {
    block = std::prev(block);
    const auto offset = static_cast<std::size_t>(range.data() - block->first);
    if (offset < block->second.bytes) {
      return block->second.name + "+" + std::to_string(offset) + ":" + std::to_string(range.size());
    }
  }
  return "unknown:" + std::to_string(range.size());
}

std::string CallLog::text(const std::vector<Range>& ranges) const {
  std::string all;
  for (const Range range : ranges) all += " " + text(range);
  return all;
}

}  // namespace hvd::test
