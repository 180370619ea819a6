#include "tests/cudnn/run/recorder.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "engine/base/assert.h"

namespace hvd::models::cudnn::testing {
namespace {

thread_local Recorder* of_thread = nullptr;
std::atomic<Recorder*> newest{nullptr};

bool same(const std::vector<Range>& a, const std::vector<Range>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](Range x, Range y) { return x.data() == y.data() && x.size() == y.size(); });
}

}  // namespace

bool Call::operator==(const Call& other) const {
  return what == other.what && same(reads, other.reads) && same(writes, other.writes);
}

Recorder::Recorder(test::FakeRuntime& gpu) : gpu_(gpu) { newest = of_thread = this; }

Recorder::~Recorder() { newest = of_thread = nullptr; }

Recorder* Recorder::current() { return of_thread != nullptr ? of_thread : newest.load(); }

void Recorder::launch(void* stream, Call call, std::function<void()> body) {
  std::vector<Range> reads = call.reads;
  std::vector<Range> writes = call.writes;
  std::erase_if(reads, [](Range range) { return range.empty(); });
  std::erase_if(writes, [](Range range) { return range.empty(); });
  if (dry) body = [] {};
  gpu_.kernel({stream}, call.what, std::move(reads), std::move(writes), std::move(body));
  calls.push_back(std::move(call));
}

}  // namespace hvd::models::cudnn::testing
