// A page of memory that the ranks of one host share: a barrier and one result per rank, independent of any library.
// Each rank owns its Meeting; one thread uses it. The file holds zeros when the first rank maps it.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace hvd::peers {

inline constexpr int kMostRanks = 64;

struct Result {
  double seconds;
  std::int64_t wrong;
  std::int32_t unsupported;
};

class Meeting {
 public:
  /// Errors: std::runtime_error where the file cannot be mapped.
  Meeting(const std::string& file, int rank, int size);
  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  /// Errors: std::runtime_error where a rank failed, or does not come within a minute.
  void barrier();
  /// Leaves this rank's result for rank 0, to read after the next barrier().
  void post(const Result& result);
  [[nodiscard]] Result posted(int rank) const;
  /// Rank 0 decides between two barriers; the others read it after the second.
  void decide(bool stop);
  [[nodiscard]] bool stopped() const;
  /// Makes the waits of the other ranks fail. Never throws.
  void fail() noexcept;

 private:
  struct Page {
    std::atomic<std::uint64_t> arrived;
    std::atomic<bool> failed;
    std::atomic<bool> stop;
    alignas(64) Result results[kMostRanks];
  };
  Page* page_ = nullptr;
  int rank_;
  int size_;
  std::uint64_t rounds_ = 0;
};

}  // namespace hvd::peers
