#include "bench/peers/collectives.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace hvd::peers {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kAlign = 64;  // bytes of a cache line; two buffers never share a line

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// The data are small whole numbers whose sums are exact in fp32, so that results need no tolerance. Element i of a
// rank's input is digit(i) + rank. The digits change with each lap through the buffers, so that a result left over from
// the previous lap is wrong.

/// Position of a rank: its number, the number of ranks, and the lap through the buffers.
struct Place {
  std::uint32_t rank;
  std::uint32_t size;
  std::uint32_t lap;
};

/// Returns 0..15, the high bits of Knuth's multiplicative hash. Neighbouring elements get different digits, and one
/// element gets different digits in successive laps.
std::uint32_t digit(std::size_t element, std::uint32_t lap) {
  return ((static_cast<std::uint32_t>(element) + lap * 977U) * 2654435761U) >> 28U;
}

/// Writes the rank's input into `call.in`.
void fill(const Call& call, const Place& place) {
  if (call.operation == Collective::kBarrier) return;
  const bool gathered = call.operation == Collective::kAllGather;
  const std::size_t begin = gathered ? place.rank * call.share : 0;
  const std::size_t count = gathered ? call.share : call.count;
  for (std::size_t i = 0; i < count; ++i) call.in[i] = static_cast<float>(digit(begin + i, place.lap) + place.rank);
}

/// Returns the value that element i of `call.out` must have.
float expected(const Call& call, const Place& place, std::size_t i) {
  const std::uint32_t ranks = place.size * (place.size - 1) / 2;  // sum of all rank numbers
  const std::size_t mine = place.rank * call.share;
  const auto sender = [&] { return static_cast<std::uint32_t>(i / call.share); };
  switch (call.operation) {
    case Collective::kAllReduce: return static_cast<float>(place.size * digit(i, place.lap) + ranks);
    case Collective::kReduceScatter: return static_cast<float>(place.size * digit(mine + i, place.lap) + ranks);
    case Collective::kAllGather: return static_cast<float>(digit(i, place.lap) + sender());
    case Collective::kAllToAll: return static_cast<float>(digit(mine + i % call.share, place.lap) + sender());
    case Collective::kBroadcast: return static_cast<float>(digit(i, place.lap));
    case Collective::kBarrier: break;
  }
  return 0;
}

/// Returns the number of wrong elements of `call.out`; 0 for a barrier.
std::int64_t count_wrong(const Call& call, const Place& place) {
  const bool scattered = call.operation == Collective::kReduceScatter;
  const std::size_t count = call.operation == Collective::kBarrier ? 0 : scattered ? call.share : call.count;
  std::int64_t wrong = 0;
  for (std::size_t i = 0; i < count; ++i) wrong += call.out[i] != expected(call, place, i);
  return wrong;
}

constexpr int kMaxRanks = 64;

struct Result {
  double seconds;
  std::int64_t wrong;
};

/// A page of memory that the ranks of one host share: a barrier and one result per rank, independent of any library.
/// Each rank owns its SharedPage and uses it from one thread. The file must hold zeros when the first rank maps it.
class SharedPage {
 public:
  /// Errors: std::runtime_error if there are too many ranks or the file cannot be mapped.
  SharedPage(const std::string& file, int size) : size_(size) {
    if (size > kMaxRanks) throw std::runtime_error("more than " + std::to_string(kMaxRanks) + " ranks");
    const int descriptor = open(file.c_str(), O_RDWR | O_CLOEXEC);
    const bool sized = descriptor >= 0 && ftruncate(descriptor, sizeof(Page)) == 0;
    void* memory = sized ? mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0) : MAP_FAILED;
    if (descriptor >= 0) close(descriptor);
    if (memory == MAP_FAILED) throw std::runtime_error("cannot map " + file);
    page_ = static_cast<Page*>(memory);  // the file's zeros are the initial values of all fields
  }
  ~SharedPage() { munmap(page_, sizeof(Page)); }
  SharedPage(const SharedPage&) = delete;
  SharedPage& operator=(const SharedPage&) = delete;

  /// Waits for all ranks. Errors: std::runtime_error if another rank failed or does not arrive within a minute.
  void barrier() {
    const std::uint64_t all = ++rounds_ * static_cast<std::uint64_t>(size_);
    page_->arrived.fetch_add(1);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    for (int look = 1; page_->arrived.load() < all; ++look) {
      sched_yield();  // ranks may share a core
      if (look % 64 != 0) continue;
      if (page_->failed.load()) throw std::runtime_error("another rank failed");
      if (std::chrono::steady_clock::now() > end) throw std::runtime_error("waited 60 s for a rank at a barrier");
    }
  }

  /// The place of a rank's result, which rank 0 reads after the next barrier().
  Result& result(int rank) { return page_->results[rank]; }
  /// Rank 0 decides between two barriers; the other ranks read it after the second.
  std::atomic<bool>& stop() { return page_->stop; }
  /// Makes the waits of the other ranks fail. Never throws.
  void fail() noexcept { page_->failed.store(true); }

 private:
  struct Page {
    std::atomic<std::uint64_t> arrived;
    std::atomic<bool> failed;
    std::atomic<bool> stop;
    alignas(64) Result results[kMaxRanks];
  };
  Page* page_ = nullptr;
  int size_;
  std::uint64_t rounds_ = 0;
};

/// The calls of one sample, each on its own buffer.
struct Cell {
  std::string text;  ///< OPERATION/fp32/BYTES/in|out/CALLS
  Collective operation = Collective::kBarrier;
  bool in_place = false;
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
  const bool whole = cell.operation == Collective::kAllReduce || cell.operation == Collective::kBroadcast;
  const std::size_t bytes = std::stoull(words[2]);
  cell.in_place = words[3] == "in";
  cell.calls = std::stoull(words[4]);
  if (bytes % sizeof(float) != 0) throw std::invalid_argument(text + ": BYTES is a multiple of 4");
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

int measure_collectives(const Library& library, int argc, const char* const* argv) {
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
