// Memory of this process and host: what is free before a model is built, and how high it went.
#pragma once

#include <cstdint>

#include "models/graph/graph.h"
#include "models/train_step.h"

namespace hvd::bench {

/// Bytes that this process may still take: the smaller of the host's free memory (MemAvailable) and what the
/// control group has left. 0 where neither can be read.
std::int64_t available_bytes();

/// Forgets the peak of the resident set so far; returns whether the kernel did (it may not be permitted).
/// Source: proc(5), /proc/[pid]/clear_refs, value 5.
bool reset_peak_resident_set();

/// Gives freed memory back to the system, so that the resident set shows what is in use.
void release_free_memory();

struct MemoryForecast {
  std::int64_t fixed_bytes = 0;      ///< weights, gradients, momentum, master weights
  std::int64_t per_image_bytes = 0;  ///< activations
  std::int64_t batch_size = 0;
  [[nodiscard]] double total_bytes() const;
};

/// What training `graph` (differentiated) takes at least, before any library is asked. Pure.
MemoryForecast forecast_memory(const models::Graph& graph, const models::StepOptions& options);

/// Errors: out_of_memory with the bytes needed, those free, and the batch that would fit, when `ranks` ranks of
/// this host cannot have what each needs. `free_bytes` 0: unknown, nothing is refused.
void refuse_if_too_big(const MemoryForecast& forecast, int ranks, std::int64_t free_bytes);

/// The same for a replay, which needs `gradient_bytes` per rank whatever the batch.
void refuse_profile_too_big(std::int64_t gradient_bytes, int ranks, std::int64_t free_bytes);

}  // namespace hvd::bench
