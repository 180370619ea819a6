#include "bench/peers/collectives.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/peers/cell.h"
#include "bench/peers/exact.h"
#include "bench/peers/shared_page.h"

namespace hvd::peers {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kAlign = 64;  // bytes of a cache line; two buffers never share a line

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// Returns the distance in bytes between two buffers of the cell. With uneven counts, an all_to_all receives up to one
/// element per rank more than it sends.
std::size_t stride_of(const Cell& cell, int size) {
  const std::size_t bytes = cell.bytes + static_cast<std::size_t>(size) * size_of(cell.type);
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

/// Memory for the buffers of all cells, allocated by the library or as ordinary pages. Pool touches every page, because
/// otherwise the first lap through the buffers could include page faults.
class Pool {
 public:
  Pool(const Library& library, std::size_t bytes) : bytes_(bytes) {
    if (library.allocate != nullptr) {
      data_ = static_cast<std::byte*>(library.allocate(library.self, bytes));
      if (data_ == nullptr)
        throw std::runtime_error("the library has no memory of " + std::to_string(bytes) + " bytes");
    } else {
      data_ = map(bytes);
      owned_ = true;
    }
    std::memset(data_, 0, bytes);
  }
  ~Pool() {
    if (owned_) munmap(data_, bytes_);
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  [[nodiscard]] std::byte* data() const { return data_; }

 private:
  static std::byte* map(std::size_t bytes) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("no memory of " + std::to_string(bytes) + " bytes");
    return static_cast<std::byte*>(memory);
  }

  std::byte* data_ = nullptr;
  std::size_t bytes_;
  bool owned_ = false;
};

/// The buffers of one cell. The samples rotate through `rotated` bytes of each pool, or more if a sample needs more.
/// All buffers are filled before each lap. Before a buffer is used again, the other buffers evict it from the caches.
class Buffers {
 public:
  Buffers(const Cell& cell, const Library& library, std::size_t rotated, const Pool& in, const Pool* out)
      : cell_(cell), library_(library), in_(in.data()), out_(out ? out->data() : nullptr) {
    const auto size = static_cast<std::size_t>(library.size);
    const std::size_t count = cell.bytes / size_of(cell.type);
    for (std::size_t r = 0; r < size; ++r) counts_.push_back(count / size + (r < count % size ? 1 : 0));
    starts_.resize(size);
    std::exclusive_scan(counts_.begin(), counts_.end(), starts_.begin(), std::size_t{0});
    stride_ = stride_of(cell, library.size);
    slots_ = std::max(rotated / stride_, cell.calls);
    next_ = slots_;
  }

  /// Returns the calls of the next sample, with their inputs filled.
  std::vector<Call> next_sample() {
    if (next_ + cell_.calls > slots_) {
      ++lap_;
      for (std::size_t slot = 0; slot < slots_; ++slot) fill(call(slot), place());
      next_ = 0;
    }
    std::vector<Call> calls;
    for (std::size_t i = 0; i < cell_.calls; ++i) calls.push_back(call(next_++));
    return calls;
  }

  [[nodiscard]] Place place() const { return {library_.rank, library_.size, lap_}; }

 private:
  [[nodiscard]] Call call(std::size_t slot) const {
    std::byte* in = in_ + slot * stride_;
    std::byte* out = cell_.in_place ? in : out_ + slot * stride_;
    const std::size_t rank = static_cast<std::size_t>(library_.rank);
    if (cell_.in_place && cell_.operation == Collective::kAllGather) in += starts_[rank] * size_of(cell_.type);
    const std::size_t count = cell_.bytes / size_of(cell_.type);
    return {cell_.operation, cell_.type, cell_.in_place, out, in, count, counts_.data(), starts_.data()};
  }

  const Cell& cell_;
  const Library& library_;
  std::byte* in_;
  std::byte* out_;
  std::vector<std::size_t> counts_;
  std::vector<std::size_t> starts_;
  std::size_t stride_ = 0;
  std::size_t slots_ = 0;
  std::size_t next_ = 0;
  std::uint32_t lap_ = 0;
};

/// Runs one sample on this rank. Returns the time from the barrier to the last call's end, and the number of wrong
/// elements.
Result sample(const Library& library, SharedPage& page, Buffers& buffers, bool corrupt_first) {
  const std::vector<Call> calls = buffers.next_sample();
  Answer answer = Answer::kDone;
  page.barrier();
  const Clock::time_point start = Clock::now();
  for (const Call& call : calls) {
    answer = library.perform(library.self, &call);
    if (answer != Answer::kDone) break;
  }
  Result result{seconds_since(start), 0, answer == Answer::kUnsupported ? 1 : 0};
  if (answer == Answer::kFailed) throw std::runtime_error("the library reports an error");
  if (answer == Answer::kUnsupported) return result;
  if (corrupt_first && library.rank == library.size - 1) corrupt(calls.front());
  for (const Call& call : calls) result.wrong += count_wrong(call, buffers.place());
  return result;
}

struct Measured {
  std::vector<double> seconds;  ///< [sample], of the slowest rank
  std::int64_t wrong = 0;       ///< wrong elements, summed over ranks and samples
  bool unsupported = false;
};

/// Adds a sample to `measured`: the slowest rank's time and the wrong elements of all ranks. Only rank 0 calls this
/// function, between two barriers.
void collect(const SharedPage& page, int size, bool warm_up, Measured& measured) {
  double slowest = 0;
  for (int rank = 0; rank < size; ++rank) {
    const Result result = page.posted(rank);
    slowest = std::max(slowest, result.seconds);
    measured.wrong += result.wrong;
    measured.unsupported |= result.unsupported != 0;
  }
  if (!warm_up && !measured.unsupported) measured.seconds.push_back(slowest);
}

/// Measures one cell. The first sample warms up: its result is checked, but its time is not counted.
Measured measure_cell(const Library& library, SharedPage& page, const Request& request, Buffers& buffers) {
  Measured measured;
  const Clock::time_point start = Clock::now();
  for (std::size_t i = 0; i <= request.samples; ++i) {
    page.post(sample(library, page, buffers, request.corrupt && i == 0));
    page.barrier();
    if (library.rank == 0) {
      collect(page, library.size, i == 0, measured);
      const bool late = i > 0 && seconds_since(start) >= request.cell_seconds;
      page.decide(measured.unsupported || late);
    }
    page.barrier();
    if (page.stopped()) break;
  }
  return measured;
}

void print(const Cell& cell, int size, const Measured& measured) {
  std::printf(R"({"cell": "%s", "ranks": %d, "wrong": %lld, "seconds": [)", cell.text.c_str(), size,
              static_cast<long long>(measured.wrong));
  const char* separator = "";
  for (const double seconds : measured.seconds) {
    std::printf("%s%.9f", separator, seconds);
    separator = ", ";
  }
  std::printf("]}\n");
  std::fflush(stdout);
}

int measure_all(const Library& library, SharedPage& page, const Request& request) {
  std::size_t in_bytes = request.pool_bytes;
  std::size_t out_bytes = 0;
  for (const Cell& cell : request.cells) {
    const std::size_t bytes = std::max(request.pool_bytes, cell.calls * stride_of(cell, library.size));
    in_bytes = std::max(in_bytes, bytes);
    if (!cell.in_place) out_bytes = std::max(out_bytes, bytes);
  }
  const Pool in(library, in_bytes);
  const std::unique_ptr<Pool> out = out_bytes > 0 ? std::make_unique<Pool>(library, out_bytes) : nullptr;
  bool wrong = false;
  for (const Cell& cell : request.cells) {
    Buffers buffers(cell, library, request.pool_bytes, in, out.get());
    const Measured measured = measure_cell(library, page, request, buffers);
    if (library.rank == 0) print(cell, library.size, measured);
    wrong |= measured.wrong != 0;  // only rank 0 has the sum; the launcher passes on rank 0's exit code
  }
  return wrong ? 1 : 0;
}

}  // namespace

int measure(const Library& library, int argc, const char* const* argv) {
  std::unique_ptr<SharedPage> page;
  try {
    const Request request = parse_request(argc, argv);
    if (library.size > kMostRanks) throw std::invalid_argument("more than " + std::to_string(kMostRanks) + " ranks");
    page = std::make_unique<SharedPage>(request.page, library.rank, library.size);
    return measure_all(library, *page, request);
  } catch (const std::exception& error) {
    if (page) page->fail();
    std::fprintf(stderr, "rank %d: %s\n", library.rank, error.what());
    return 2;
  }
}

}  // namespace hvd::peers

extern "C" int hvd_measure_collectives(const hvd::peers::Library* library, int argc, const char* const* argv) {
  return hvd::peers::measure(*library, argc, argv);
}
