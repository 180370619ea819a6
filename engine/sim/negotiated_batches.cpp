#include "engine/sim/negotiated_batches.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <variant>

#include "engine/base/align.h"
#include "engine/base/assert.h"
#include "engine/base/error.h"
#include "engine/core/gradient_runs.h"

namespace hvd::sim {

NegotiatedBatches::NegotiatedBatches(const StepProfile& profile, const core::NegotiatorOptions& options)
    : gradients_(profile.gradients),
      dtype_(profile.dtype),
      align_bytes_(std::max<std::size_t>(options.fusion.align_bytes, 1)),
      negotiator_(0, 1, options) {
  if (options.cache_capacity < gradients_.size()) {
    throw Error(Errc::kInvalidArgument,
                fmt::format("simulation: a cache of {} requests for {} gradients; cycles with the coordinator are not "
                            "simulated",
                            options.cache_capacity, gradients_.size()));
  }
  std::size_t end = 0;
  for (std::size_t g = 0; g < gradients_.size(); ++g) {
    if (gradients_[g].offset < end) throw Error(Errc::kInvalidArgument, "simulation: gradients overlap in the arena");
    end = gradients_[g].offset + gradients_[g].count;
    requests_.push_back(
        {std::to_string(g), dtype_, ReduceOp::kAverage, {static_cast<std::int64_t>(gradients_[g].count)}});
    negotiator_.submit(requests_.back(), static_cast<core::Tag>(g));
  }
  (void)cycle();
  cached_.resize(gradients_.size());
}

std::span<const Batch> NegotiatedBatches::agree(std::size_t first, std::size_t last) {
  for (std::size_t g = first; g < last; ++g) {
    const auto tag = static_cast<core::Tag>(g);
    if (!negotiator_.submit_cached(cached_[g], tag)) cached_[g] = negotiator_.submit(requests_[g], tag).value();
  }
  batches_.clear();
  for (core::Batch& batch : cycle()) batches_.push_back(planned(std::move(batch)));
  return batches_;
}

/// Alone in its world, the negotiator gets its own words and messages back.
std::vector<core::Batch> NegotiatedBatches::cycle() {
  core::Action action = negotiator_.begin_cycle();
  for (;;) {
    if (const auto* bits = std::get_if<core::AllReduceBits>(&action)) {
      action = negotiator_.on_bits(bits->words);
    } else if (const auto* gather = std::get_if<core::Gather>(&action)) {
      action = negotiator_.on_gathered(std::span(&gather->message, 1));
    } else if (const auto* broadcast = std::get_if<core::Broadcast>(&action)) {
      action = negotiator_.on_broadcast(broadcast->message);
    } else {
      return std::move(std::get<core::CycleDone>(action).batches);
    }
  }
}

Batch NegotiatedBatches::planned(core::Batch batch) const {
  HVD_ASSERT(batch.error.empty());
  const core::GradientRuns ranges = core::gradient_runs(batch.tags, batch.bytes);
  Batch out;
  out.last = ranges.runs.back().last - 1;
  out.bytes = batch.bytes;
  out.packed = ranges.packed;
  std::size_t packed_bytes = 0;
  for (const core::GradientRun& run : ranges.runs) {
    const Gradient& tail = gradients_[run.last - 1];
    out.reductions.push_back((tail.offset + tail.count - gradients_[run.first].offset) * size_of(dtype_));
    for (std::size_t g = run.first; g < run.last; ++g) {
      packed_bytes = align_up(packed_bytes, align_bytes_) + gradients_[g].count * size_of(dtype_);
    }
  }
  if (out.packed) out.reductions = {packed_bytes};
  out.gradients = std::move(batch.tags);
  return out;
}

}  // namespace hvd::sim
