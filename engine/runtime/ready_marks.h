// Which gradients of the step are final, shared between the thread that computes them and the engine's
// thread without a lock: one bit per gradient and one countdown per bucket. The caller marks; the engine
// reads. configure() and reset() belong to the caller, while no step runs.
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
  /// Any thread, any order.
  Marked mark(std::size_t gradient) noexcept;

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
  // All sequentially consistent: the engine's sleep protocol (engine_impl.h) relies on one total order of
  // marks and the engine's "I am asleep" flag.
  std::size_t gradients_ = 0;
  std::size_t words_ = 0;
  std::unique_ptr<std::atomic<std::uint64_t>[]> marks_;
  std::unique_ptr<std::atomic<std::uint32_t>[]> missing_;  // [bucket] gradients not yet marked
  std::vector<std::uint64_t> taken_;                       // engine's thread, during a step
  std::vector<std::uint32_t> members_;                     // [bucket] gradients
  std::vector<std::uint32_t> bucket_of_;                   // [gradient]
};

}  // namespace hvd
