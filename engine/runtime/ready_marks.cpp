#include "engine/runtime/ready_marks.h"

#include <algorithm>

namespace hvd {

void ReadyMarks::configure(std::size_t gradients, const std::vector<core::Bucket>& buckets) {
  gradients_ = gradients;
  words_ = (gradients + 63) / 64;
  marks_ = std::make_unique<std::atomic<std::uint64_t>[]>(words_);
  missing_ = std::make_unique<std::atomic<std::uint32_t>[]>(buckets.size());
  taken_.assign(words_, 0);
  members_.clear();
  bucket_of_.assign(gradients, 0);
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    members_.push_back(static_cast<std::uint32_t>(buckets[b].last - buckets[b].first));
    for (std::size_t g = buckets[b].first; g < buckets[b].last; ++g) bucket_of_[g] = static_cast<std::uint32_t>(b);
  }
  reset();
}

void ReadyMarks::reset() noexcept {
  for (std::size_t word = 0; word < words_; ++word) marks_[word].store(0);
  for (std::size_t b = 0; b < members_.size(); ++b) missing_[b].store(members_[b]);
  std::fill(taken_.begin(), taken_.end(), 0);
}

ReadyMarks::Marked ReadyMarks::mark(std::size_t gradient) noexcept {
  std::atomic<std::uint64_t>& word = marks_[gradient / 64];
  const std::uint64_t bit = std::uint64_t{1} << (gradient % 64);
  const std::uint64_t before = word.load(std::memory_order_relaxed);
  if ((before & bit) != 0) return {.again = true};
  word.store(before | bit, std::memory_order_relaxed);
  std::atomic<std::uint32_t>& missing = missing_[bucket_of_[gradient]];
  const std::uint32_t left = missing.load(std::memory_order_relaxed) - 1;
  if (left != 0) {
    missing.store(left, std::memory_order_relaxed);
    return {};
  }
  missing.store(0);
  return {.completed = bucket_of_[gradient]};
}

bool ReadyMarks::mark_fresh(std::size_t gradient) noexcept {
  std::atomic<std::uint64_t>& word = marks_[gradient / 64];
  const std::uint64_t bit = std::uint64_t{1} << (gradient % 64);
  const std::uint64_t before = word.load(std::memory_order_relaxed);
  if ((before & bit) != 0) return false;
  word.store(before | bit);
  return true;
}

std::size_t ReadyMarks::first_missing(std::size_t first, std::size_t last) const noexcept {
  for (std::size_t g = first; g < last; ++g) {
    if ((marks_[g / 64].load(std::memory_order_relaxed) >> (g % 64) & 1U) == 0) return g;
  }
  return kNone;
}

bool ReadyMarks::fresh() const noexcept {
  for (std::size_t word = 0; word < words_; ++word) {
    if ((marks_[word].load() & ~taken_[word]) != 0) return true;
  }
  return false;
}

}  // namespace hvd
