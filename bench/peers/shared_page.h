// A page of memory that the ranks of one host share: a barrier and one result per rank, independent of any library.
// Each rank owns its SharedPage and uses it from one thread. The file must hold zeros when the first rank maps it.
#pragma once

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace hvd::peers {

inline constexpr int kMaxRanks = 64;

struct Result {
  double seconds;
  std::int64_t wrong;
};

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

}  // namespace hvd::peers
