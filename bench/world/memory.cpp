#include "bench/world/memory.h"

#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <fstream>
#include <mutex>
#include <string>

#include "bench/store/host_facts.h"
#include "engine/base/error.h"
#include "models/graph/memory_plan.h"

namespace hvd::bench {
namespace {

constexpr double kGigabyte = 1e9;

std::string gigabytes(double bytes) { return fmt::format("{:.1f} GB", bytes / kGigabyte); }

}  // namespace

std::int64_t available_bytes() { return memory().available_bytes; }

bool reset_peak_resident_set() {
  std::ofstream out("/proc/self/clear_refs");
  out << "5" << std::flush;
  return out.good();
}

void release_free_memory() {
  // Only one thread at a time may call malloc_trim(). If another allocator replaces malloc, the first call of
  // malloc_trim() initialises glibc's own allocator, without a lock.
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  malloc_trim(0);
}

double MemoryForecast::total_bytes() const {
  return static_cast<double>(fixed_bytes) + static_cast<double>(per_image_bytes) * static_cast<double>(batch_size);
}

MemoryForecast forecast_memory(const models::Graph& graph, const models::StepOptions& options) {
  const auto element = static_cast<std::int64_t>(size_of(options.compute));
  const bool master = options.compute != DataType::kF32 && options.compute != DataType::kF64;
  // Adds the bytes of a weight in the compute type, momentum in fp32, a master weight in fp32 (only for 16-bit compute
  // types), and a gradient in the gradient type.
  const std::int64_t per_parameter =
      element + 4 + (master ? 4 : 0) + static_cast<std::int64_t>(size_of(options.gradient));
  const models::MemoryPlan plan = models::plan_memory(models::lifetimes(graph, size_of(options.compute)));
  MemoryForecast forecast;
  forecast.batch_size = graph.batch_size;
  forecast.fixed_bytes = graph.parameter_count() * per_parameter;
  forecast.per_image_bytes = static_cast<std::int64_t>(plan.arena_bytes) / std::max<std::int64_t>(1, graph.batch_size);
  return forecast;
}

void refuse_profile_too_big(std::int64_t gradient_bytes, int ranks, std::int64_t free_bytes) {
  const double needed = static_cast<double>(gradient_bytes) * ranks;
  if (free_bytes <= 0 || needed <= static_cast<double>(free_bytes)) return;
  throw Error(Errc::kOutOfMemory,
              fmt::format("the gradients of the replay profile need {} for the {} rank(s) of this host, and {} are "
                          "free; use fewer ranks per host or another profile",
                          gigabytes(needed), ranks, gigabytes(static_cast<double>(free_bytes))));
}

void refuse_if_too_big(const MemoryForecast& forecast, int ranks, std::int64_t free_bytes) {
  const double needed = forecast.total_bytes() * ranks;
  if (free_bytes <= 0 || needed <= static_cast<double>(free_bytes)) return;
  const double for_images = static_cast<double>(free_bytes) / ranks - static_cast<double>(forecast.fixed_bytes);
  // Leave a tenth for memory that the forecast does not include: workspaces, the batches themselves, the program.
  const auto fits = static_cast<std::int64_t>(0.9 * for_images /
                                              static_cast<double>(std::max<std::int64_t>(1, forecast.per_image_bytes)));
  const std::string ranks_here =
      ranks == 1 ? "" : fmt::format(", {} for the {} ranks of this host", gigabytes(needed), ranks);
  const std::string advice =
      fits >= 1 ? fmt::format("about --batch-size {} would fit", fits)
                : "not even one image per rank fits: use fewer ranks per host or a smaller --image-size";
  throw Error(Errc::kOutOfMemory, fmt::format("batch {} needs at least {} per rank{}, and {} are free; {}",
                                              forecast.batch_size, gigabytes(forecast.total_bytes()), ranks_here,
                                              gigabytes(static_cast<double>(free_bytes)), advice));
}

}  // namespace hvd::bench
