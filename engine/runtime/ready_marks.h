// Records which gradients of the step are complete: one bit per gradient, one countdown per bucket. The caller marks
// gradients, and calls configure() and reset() while no step runs. The engine's thread reads the marks. No lock is
// needed. Only one thread at a time marks, so marking needs no atomic read-modify-write.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/core/bucket_plan.h"

namespace hvd {

class ReadyMarks {
 public:
  static constexpr std::size_t kNone = ~std::size_t{0};

  void configure(std::size_t gradients, const std::vector<core::Bucket>& buckets);
  /// Forgets all marks.
  void reset() noexcept;

  struct Marked {
    bool again = false;             ///< true if the gradient was already marked in this step, by a caller's mistake
    std::size_t completed = kNone;  ///< the bucket that this gradient completed; kNone: none
  };
  /// For the caller, in any order: marks a gradient under the static or sharded schedule. ready() becomes true when the
  /// last gradient of the bucket is marked. fresh() and take() may see the mark late.
  Marked mark(std::size_t gradient) noexcept;
  /// For the caller, in any order: marks a gradient under the negotiated schedule. fresh() and take() see the mark at
  /// once, and ready() does not change. Returns false if the gradient was already marked in this step.
  bool mark_fresh(std::size_t gradient) noexcept;

  [[nodiscard]] std::size_t size() const noexcept { return gradients_; }
  [[nodiscard]] std::size_t buckets() const noexcept { return members_.size(); }
  /// Returns true if every gradient of `bucket` is complete.
  [[nodiscard]] bool ready(std::size_t bucket) const noexcept { return missing_[bucket].load() == 0; }
  /// Returns the first gradient without a mark in [first, last), or kNone.
  [[nodiscard]] std::size_t first_missing(std::size_t first, std::size_t last) const noexcept;

  /// For the engine's thread. Returns true if take() would visit a gradient.
  [[nodiscard]] bool fresh() const noexcept;
  /// For the engine's thread. Visits the gradients marked since the last call, in index order.
  template <class Visit>
  void take(Visit&& visit) {
    for (std::size_t word = 0; word < words_; ++word) {
      std::uint64_t bits = marks_[word].load() & ~taken_[word];
      taken_[word] |= bits;
      for (; bits != 0; bits &= bits - 1) {
        visit(word * 64 + static_cast<std::size_t>(std::countr_zero(bits)));
      }
    }
  }

 private:
  // The engine's sleep protocol (engine_impl.h) needs one total order of the flag sleeping_ and of the stores that the
  // engine's thread waits for: a countdown that reaches 0, and every mark_fresh(). Therefore these stores are
  // sequentially consistent. Other stores need no order.
  std::size_t gradients_ = 0;
  std::size_t words_ = 0;
  std::unique_ptr<std::atomic<std::uint64_t>[]> marks_;
  std::unique_ptr<std::atomic<std::uint32_t>[]> missing_;  // [bucket]: number of gradients not yet marked
  std::vector<std::uint64_t> taken_;                       // marks that take() has visited; for the engine's thread
  std::vector<std::uint32_t> members_;                     // [bucket]: number of gradients
  std::vector<std::uint32_t> bucket_of_;                   // [gradient]
};

}  // namespace hvd
