// Memory of this process and host: how much is free before a model is built, and the peak use.
#pragma once

#include <cstdint>

#include "models/graph/graph.h"
#include "models/train_step.h"

namespace hvd::bench {

/// Returns the bytes that this process may still allocate, as bench/store/host_facts.h reads them for `doctor` too: the
/// host's free memory or what the cgroups leave, whichever is less. Returns 0 if neither can be read.
std::int64_t available_bytes();

/// Resets the peak of the resident set. Returns false if the kernel does not permit it.
/// Source: proc(5), /proc/[pid]/clear_refs, value 5.
bool reset_peak_resident_set();

/// Returns freed memory to the system, so that the resident set shows the memory in use.
void release_free_memory();

struct MemoryForecast {
  std::int64_t fixed_bytes = 0;      ///< weights, gradients, momentum, master weights
  std::int64_t per_image_bytes = 0;  ///< activations
  std::int64_t batch_size = 0;
  [[nodiscard]] double total_bytes() const;
};

/// Returns the least memory for training `graph` (differentiated), without the memory that libraries need. Pure.
MemoryForecast forecast_memory(const models::Graph& graph, const models::StepOptions& options);

/// Errors: out_of_memory if `ranks` ranks of this host together need more than `free_bytes`. The text gives the bytes
/// needed, the bytes free, and the batch that would fit. `free_bytes` 0: unknown, nothing is refused.
void refuse_if_too_big(const MemoryForecast& forecast, int ranks, std::int64_t free_bytes);

/// Like refuse_if_too_big() for a replay, which needs `gradient_bytes` per rank at any batch size.
void refuse_profile_too_big(std::int64_t gradient_bytes, int ranks, std::int64_t free_bytes);

}  // namespace hvd::bench
