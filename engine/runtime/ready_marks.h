// Which gradients of the step are final, shared without a lock between the caller, who computes and marks them, and the
// engine's thread, which reads: one bit per gradient and one countdown per bucket. The caller is one thread at a time,
// so marking needs no atomic read-modify-write. The caller calls configure() and reset() while no step runs.
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
    bool again = false;             ///< it was marked before in this step: the caller's mistake
    std::size_t completed = kNone;  ///< the bucket that this gradient completed
  };
  /// For a schedule by bucket. Caller, any order. ready() becomes true when the bucket's last gradient is marked; a
  /// thread in take() or fresh() may see the mark late.
  Marked mark(std::size_t gradient) noexcept;
  /// For the negotiated schedule. Caller, any order: fresh() and take() see the mark at once. Buckets are not counted.
  /// Returns false if the gradient was marked before in this step.
  bool mark_fresh(std::size_t gradient) noexcept;

  [[nodiscard]] std::size_t size() const noexcept { return gradients_; }
  [[nodiscard]] std::size_t buckets() const noexcept { return members_.size(); }
  /// Whether every gradient of `bucket` is final.
  [[nodiscard]] bool ready(std::size_t bucket) const noexcept { return missing_[bucket].load() == 0; }
  /// First gradient without a mark in [first, last), or kNone.
  [[nodiscard]] std::size_t first_missing(std::size_t first, std::size_t last) const noexcept;

  /// Engine's thread: whether take() would visit anything.
  [[nodiscard]] bool fresh() const noexcept;
  /// Engine's thread: visits each marked gradient once per step, in index order.
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
  // The engine's sleep protocol (engine_impl.h) needs one total order of the engine's "I am asleep" flag and of each
  // store that the engine waits for: the countdown that reaches 0, and every mark_fresh(). These stores are sequentially
  // consistent; the others need no order.
  std::size_t gradients_ = 0;
  std::size_t words_ = 0;
  std::unique_ptr<std::atomic<std::uint64_t>[]> marks_;
  std::unique_ptr<std::atomic<std::uint32_t>[]> missing_;  // [bucket] gradients not yet marked
  std::vector<std::uint64_t> taken_;                       // engine's thread, during a step
  std::vector<std::uint32_t> members_;                     // [bucket] gradients
  std::vector<std::uint32_t> bucket_of_;                   // [gradient]
};

}  // namespace hvd
