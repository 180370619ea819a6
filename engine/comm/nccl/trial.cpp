#include "engine/comm/nccl/trial.h"

#include <fmt/format.h>

#include "engine/base/error.h"
#include "engine/base/files.h"
#include "engine/comm/nccl/rank_gpus.h"

namespace hvd::comm::nccl {
namespace {

using namespace std::chrono_literals;

/// Not divisible into equal shares, so that the elements after the shares are tested.
constexpr std::size_t kCount = 1024 + 6;

}  // namespace

void check_world(Communicator& host, gpu::GpuRuntime& runtime, const Api* api, const NcclOptions& options,
                 Deadline deadline) {
  if (host.topology().size == 1) return;
  if (api == nullptr) throw Error(Errc::kInvalidArgument, "several ranks on GPUs need NCCL");
  const std::string boot = read_file("/proc/sys/kernel/random/boot_id").value_or("");
  check_gpus_and_versions(host,
                          {.gpu_uuid = runtime.device().uuid,
                           .gpu_label = runtime.label(),
                           .visible_gpus = runtime.device().visible,
                           .version = api->version().text(),
                           .machine = boot.substr(0, boot.find('\n'))},
                          options.share_gpus, deadline);
}

float trial_value(int rank, std::size_t i) { return static_cast<float>(rank % 8 + 1) * static_cast<float>(i % 7); }

Trial::Trial(gpu::GpuRuntime& runtime)
    : staging_(runtime.allocate_pinned(kCount * sizeof(float), "the trial reduction")),
      device_(runtime.allocate(kCount * sizeof(float), "the trial reduction")) {}

void Trial::run(DevicePlane& plane, const Topology& where, const std::string& here, Deadline deadline) {
  auto* const values = reinterpret_cast<float*>(staging_->bytes.data());
  for (std::size_t i = 0; i < kCount; ++i) values[i] = trial_value(where.rank, i);
  plane.copy(device_->bytes.data(), values, staging_->bytes.size());
  plane.all_reduce(device_->bytes.data(), kCount, DataType::kF32, ReduceOp::kSum, deadline);
  plane.copy(values, device_->bytes.data(), staging_->bytes.size());
  plane.complete("the trial reduction", deadline);
  for (std::size_t i = 0; i < kCount; ++i) {
    float expected = 0;
    for (int rank = 0; rank < where.size; ++rank) expected += trial_value(rank, i);
    if (values[i] == expected) continue;
    throw Error(Errc::kCheckFailed, fmt::format("{}: NCCL summed element {} of a trial to {:f} instead of {:f}: try "
                                                "NCCL_P2P_DISABLE=1 or NCCL_ALGO=Ring, and report it to NVIDIA",
                                                here, i, values[i], expected));
  }
}

}  // namespace hvd::comm::nccl
