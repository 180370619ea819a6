#include "bench/peers/collectives.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "bench/peers/exact.h"
#include "bench/peers/shared_page.h"

namespace hvd::peers {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kAlign = 64;  // bytes of a cache line; two buffers never share a line

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// The calls of one sample, each on its own buffer.
struct Cell {
  std::string text;  ///< OPERATION/fp32/BYTES/in|out/CALLS
  Collective operation = Collective::kBarrier;
  bool in_place = false;  ///< follows from the operation
  std::size_t count = 0;  ///< elements of a call
  std::size_t share = 0;  ///< elements of a rank
  std::size_t calls = 0;
  std::size_t stride = 0;  ///< bytes from one buffer to the next
};

/// Shares are equal, so the elements of a call are rounded down to a multiple of the ranks, as nccl-tests does. Each
/// rank has at least one element. Errors: std::invalid_argument.
Cell parse_cell(const std::string& text, std::size_t size) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; std::getline(stream, word, '/');) words.push_back(word);
  const auto& names = bench::kCollectiveNames;
  const auto* name = words.empty() ? names.end() : std::find(names.begin(), names.end(), words[0]);
  if (words.size() != 5 || name == names.end() || words[1] != "fp32") {
    throw std::invalid_argument(text + ": not OPERATION/fp32/BYTES/in|out/CALLS");
  }
  Cell cell{.text = text, .operation = static_cast<Collective>(name - names.begin())};
  const bool barrier = cell.operation == Collective::kBarrier;
  const bool whole = cell.operation == Collective::kAllReduce || cell.operation == Collective::kBroadcast;
  const std::size_t bytes = std::stoull(words[2]);
  cell.in_place = barrier || whole;
  cell.calls = std::stoull(words[4]);
  if (words[3] != (cell.in_place ? "in" : "out") || bytes % sizeof(float) != 0 || (bytes == 0) != barrier ||
      cell.calls == 0) {
    throw std::invalid_argument(text + ": 'in' and 0 bytes belong to a barrier, 'in' to all_reduce and broadcast, " +
                                "'out' to the rest, BYTES is a multiple of 4, and there is at least one call");
  }
  cell.share = std::max<std::size_t>(1, bytes / sizeof(float) / size);
  cell.count = whole ? bytes / sizeof(float) : cell.share * size;
  cell.stride = (cell.count * sizeof(float) + kAlign - 1) / kAlign * kAlign;
  return cell;
}

/// Memory for the buffers of all cells, allocated by the library or as ordinary memory. Pool touches every page,
/// because otherwise the first lap through the buffers could include page faults.
class Pool {
 public:
  Pool(const Library& library, std::size_t bytes) {
    if (library.allocate == nullptr) own_.resize(bytes / kAlign + 1);
    data_ = own_.empty() ? static_cast<std::byte*>(library.allocate(library.self, bytes)) : own_.front().bytes;
    if (data_ == nullptr) throw std::runtime_error("the library has no memory of " + std::to_string(bytes) + " bytes");
    std::memset(data_, 0, bytes);
  }

  [[nodiscard]] std::byte* data() const { return data_; }

 private:
  struct alignas(kAlign) Line {
    std::byte bytes[kAlign];
  };
  std::vector<Line> own_;
  std::byte* data_ = nullptr;
};

/// The buffers of one cell. The samples rotate through `rotated` bytes of each pool, or more if a sample needs more.
/// All buffers are filled before each lap. Before a buffer is used again, the other buffers evict it from the caches.
class Buffers {
 public:
  Buffers(const Cell& cell, const Library& library, std::size_t rotated, const Pool& in, const Pool& out)
      : cell_(cell), library_(library), in_(in.data()), out_(cell.in_place ? in_ : out.data()) {
    slots_ = std::max(rotated / cell.stride, cell.calls);
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

  [[nodiscard]] Place place() const {
    return {static_cast<std::uint32_t>(library_.rank), static_cast<std::uint32_t>(library_.size), lap_};
  }

 private:
  [[nodiscard]] Call call(std::size_t slot) const {
    auto* in = reinterpret_cast<float*>(in_ + slot * cell_.stride);
    auto* out = reinterpret_cast<float*>(out_ + slot * cell_.stride);
    return {cell_.operation, out, in, cell_.count, cell_.share};
  }

  const Cell& cell_;
  const Library& library_;
  std::byte* in_;
  std::byte* out_;
  std::size_t slots_ = 0;
  std::size_t next_ = 0;
  std::uint32_t lap_ = 0;
};

/// Runs one sample on this rank. Returns the time from the barrier to the last call's end, and the number of wrong
/// elements. corrupt: changes one element of the first result before the check.
Result sample(const Library& library, SharedPage& page, Buffers& buffers, bool corrupt) {
  const std::vector<Call> calls = buffers.next_sample();
  bool good = true;
  page.barrier();
  const Clock::time_point start = Clock::now();
  for (const Call& call : calls) good = good && library.perform(library.self, &call);
  Result result{seconds_since(start), 0};
  if (!good) throw std::runtime_error("the library reports an error");
  if (corrupt && calls.front().operation != Collective::kBarrier) calls.front().out[0] += 1;
  for (const Call& call : calls) result.wrong += count_wrong(call, buffers.place());
  return result;
}

struct Limits {
  std::size_t samples;
  std::size_t cell_seconds;  ///< after this time no sample of the cell starts
  bool corrupt;
};

/// Measures one cell. Rank 0 prints the slowest rank's time of each sample, and returns the number of wrong elements of
/// all ranks. The first sample warms up: its result is checked, but its time is not counted.
std::int64_t measure_cell(const Library& library, SharedPage& page, const Limits& limits, const Cell& cell,
                          Buffers& buffers) {
  std::string seconds;
  std::int64_t wrong = 0;
  const Clock::time_point start = Clock::now();
  for (std::size_t i = 0; i <= limits.samples; ++i) {
    const bool corrupt = limits.corrupt && i == 0 && library.rank == library.size - 1;
    page.result(library.rank) = sample(library, page, buffers, corrupt);
    page.barrier();
    if (library.rank == 0) {
      double slowest = 0;
      for (int rank = 0; rank < library.size; ++rank) {
        slowest = std::max(slowest, page.result(rank).seconds);
        wrong += page.result(rank).wrong;
      }
      if (i > 0) seconds += (seconds.empty() ? "" : ", ") + std::to_string(1e9 * slowest);
      page.stop() = i > 0 && seconds_since(start) >= static_cast<double>(limits.cell_seconds);
    }
    page.barrier();
    if (page.stop()) break;
  }
  if (library.rank == 0) {
    std::printf(R"({"cell": "%s", "ranks": %d, "wrong": %lld, "nanoseconds": [%s]})", cell.text.c_str(), library.size,
                static_cast<long long>(wrong), seconds.c_str());
    std::printf("\n");
    std::fflush(stdout);
  }
  return wrong;
}

}  // namespace

int measure(const Library& library, int argc, const char* const* argv) {
  std::unique_ptr<SharedPage> page;
  try {
    if (argc < 7) throw std::invalid_argument("usage: FILE SAMPLES CELL_SECONDS POOL_BYTES exact|corrupt CELL...");
    page = std::make_unique<SharedPage>(argv[1], library.size);
    const Limits limits{std::stoull(argv[2]), std::stoull(argv[3]), std::string_view(argv[5]) == "corrupt"};
    const std::size_t rotated = std::stoull(argv[4]);  // buffers rotate through at least this many bytes
    std::size_t bytes = rotated;
    std::vector<Cell> cells;
    for (int i = 6; i < argc; ++i) {
      cells.push_back(parse_cell(argv[i], static_cast<std::size_t>(library.size)));
      bytes = std::max(bytes, cells.back().calls * cells.back().stride);
    }
    const bool one_pool = std::all_of(cells.begin(), cells.end(), [](const Cell& cell) { return cell.in_place; });
    const Pool in(library, bytes);
    const Pool out(library, one_pool ? kAlign : bytes);
    std::int64_t wrong = 0;
    for (const Cell& cell : cells) {
      Buffers buffers(cell, library, rotated, in, out);
      wrong += measure_cell(library, *page, limits, cell, buffers);
    }
    return wrong == 0 ? 0 : 1;  // only rank 0 knows; the launcher passes on its exit code
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
