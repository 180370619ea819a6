// A page of memory that the ranks of one host share: a barrier and one result per rank, independent of any library.
// Each rank owns its SharedPage and uses it from one thread. The file must hold zeros when the first rank maps it.
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

class SharedPage {
 public:
  /// Errors: std::runtime_error if the file cannot be mapped.
  SharedPage(const std::string& file, int rank, int size);
  ~SharedPage();
  SharedPage(const SharedPage&) = delete;
  SharedPage& operator=(const SharedPage&) = delete;

  /// Errors: std::runtime_error if another rank failed or does not arrive within a minute.
  void barrier();
  /// Stores this rank's result; rank 0 reads the result after the next barrier().
  void post(const Result& result);
  [[nodiscard]] Result posted(int rank) const;
  /// Rank 0 calls decide() between two barriers; the other ranks read the decision after the second barrier.
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
