#include "bench/coll/gpu_rank.h"

#include <exception>
#include <utility>

#include "bench/hardware/gpu_choice.h"
#include "bench/hardware/gpu_facts.h"
#include "bench/store/host_facts.h"
#include "bench/world/settings.h"
#include "engine/base/assert.h"
#include "engine/comm/device_communicator.h"

namespace hvd::bench::coll {
namespace {

/// Deadline for NCCL's abort, which returns within milliseconds if no graph holds an operation of NCCL.
constexpr std::chrono::seconds kLetGo(10);

std::unique_ptr<comm::Communicator> over_nccl(std::unique_ptr<comm::Communicator> host, const Variant& variant,
                                              GpuBackend& gpus, gpu::GpuRuntime& gpu, Patience patience) {
  const comm::NcclOptions options{.register_memory = variant.registered, .deadline = patience};
  auto nccl = host->topology().size > 1 ? gpus.load_nccl(gpu) : nullptr;
  return comm::make_nccl(std::move(host), gpu, std::move(nccl), options, patience.from_now());
}

}  // namespace

GpuRank connect(const CollOptions& options, std::vector<std::unique_ptr<comm::Communicator>>& hosts, GpuBackend* gpus,
                const std::function<std::string()>& nccl_log) {
  if (!options.gpus) return {nullptr, std::move(hosts)};
  const Patience patience = options.startup_deadline;
  HVD_ASSERT(gpus != nullptr);
  const gpu::DeviceList list = gpus->list();
  const std::string absence = gpu_absence(list);
  require_no_objection(*hosts.front(), absence.empty() ? absence : "--device cuda: " + absence, patience.from_now());
  GpuRank rank;
  try {
    rank.gpu = gpus->open(choose_gpu(*hosts.front(), list, affinity(), patience.from_now()));
    for (std::size_t i = 0; i < hosts.size(); ++i) {
      rank.variants.push_back(over_nccl(std::move(hosts[i]), options.variants[i], *gpus, *rank.gpu, patience));
    }
    comm::Communicator& first = *rank.variants.front();
    const GpuDescription mine =
        describe_rank(rank.gpu->device(), list, first.topology(), nccl_log ? nccl_log() : std::string());
    rank.facts =
        gather_gpu_facts(mine, [&](auto text) { return first.control().gather(text, patience.from_now()); }).provenance;
  } catch (const std::exception& error) {
    for (const auto& host : hosts) {
      if (host) host->control().abort(error.what());  // if null, over_nccl() took `host` and told the peers
    }
    abort_all(rank.variants, error.what());
    throw;
  }
  return rank;
}

void abort_all(Variants variants, std::string_view reason, const std::function<void()>& at_rest) noexcept {
  for (const auto& variant : variants) variant->control().abort(reason);
  for (const auto& variant : variants) variant->data().abandon();
  if (at_rest) at_rest();
  const Deadline patience = Deadline::after(kLetGo);
  for (const auto& variant : variants) {
    auto* const gpu = dynamic_cast<comm::DeviceCommunicator*>(variant.get());
    if (gpu != nullptr) static_cast<void>(gpu->device().await_abort(patience));
  }
}

}  // namespace hvd::bench::coll
