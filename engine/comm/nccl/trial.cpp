#include "engine/comm/nccl/trial.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <span>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/files.h"
#include "engine/comm/nccl/api.h"

namespace hvd::comm::nccl {
namespace {

using namespace std::chrono_literals;

/// Not divisible into equal shares, so that the elements after the shares are tested.
constexpr std::size_t kCount = 1024 + 6;

}  // namespace

std::string Version::text() const { return fmt::format("{}.{}.{}", major, minor, patch); }

Version version_from_number(int number) noexcept {
  const int unit = number >= 20000 ? 10000 : 1000;
  return {.major = number / unit, .minor = number % unit / 100, .patch = number % 100};
}

Bytes RankGpu::to_bytes() const {
  const std::string text = fmt::format("{}\n{}\n{}\n{}\n{}\n", gpu_uuid, gpu_label, visible_gpus, version, machine);
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

RankGpu RankGpu::parse(const Bytes& bytes) {
  std::string text = text_of(bytes);
  std::vector<std::string> lines;
  for (std::size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n')) {
    lines.push_back(text.substr(0, end));
    text.erase(0, end + 1);
  }
  RankGpu gpu;
  constexpr std::size_t kLines = 5;
  if (lines.size() == kLines) {
    const std::string& number = lines[2];
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), gpu.visible_gpus);
    if (error == std::errc{} && end == number.data() + number.size()) {
      gpu.gpu_uuid = lines[0];
      gpu.gpu_label = lines[1];
      gpu.version = lines[3];
      gpu.machine = lines[4];
      return gpu;
    }
  }
  throw Error(Errc::kMismatch, "a rank's description of its GPU is unreadable: do all ranks run the same binary?");
}

std::string shared_gpu(const std::vector<RankGpu>& gpus, const std::vector<std::string>& hosts) {
  std::map<std::pair<std::string, std::string>, std::size_t> first;  // (machine, GPU) -> its first rank
  for (std::size_t rank = 0; rank < gpus.size(); ++rank) {
    const RankGpu& gpu = gpus[rank];
    const std::string& machine = gpu.machine.empty() ? hosts.at(rank) : gpu.machine;
    const auto [found, fresh] = first.emplace(std::pair(machine, gpu.gpu_uuid), rank);
    if (fresh) continue;
    if (hosts[rank] != hosts[found->second]) {
      return fmt::format(
          "{} and {} were both given {}, {}: their hosts are containers of one machine; NCCL needs one GPU per rank: "
          "give each container GPUs of its own (docker run --gpus, NVIDIA_VISIBLE_DEVICES)",
          rank_at(found->second, hosts), rank_at(rank, hosts), gpu.gpu_label, gpu.gpu_uuid);
    }
    const auto here = std::count(hosts.begin(), hosts.end(), hosts[rank]);
    const std::string text = fmt::format(
        "{} and {} were both given {}, {}: {} ranks run on this host, and rank {} sees {} {}; NCCL needs one GPU per "
        "rank: ",
        rank_at(found->second, hosts), rank_at(rank, hosts), gpu.gpu_label, gpu.gpu_uuid, here, rank, gpu.visible_gpus,
        gpu.visible_gpus == 1 ? "GPU" : "GPUs");
    return text + (here > gpu.visible_gpus
                       ? "start no more ranks per host than it has GPUs, or let every rank see all of them (srun "
                         "--gpus-per-node=N --gpu-bind=none; mpirun without a common CUDA_VISIBLE_DEVICES)"
                       : "let each rank take the GPU of its local rank (leave the device index to the program)");
  }
  return {};
}

std::string version_difference(const std::vector<RankGpu>& gpus, const std::vector<std::string>& hosts) {
  for (std::size_t rank = 1; rank < gpus.size(); ++rank) {
    if (gpus[rank].version == gpus[0].version) continue;
    return fmt::format("{} loaded NCCL {}, {} {}: give all ranks the same (HVD_NCCL_ROOT, LD_LIBRARY_PATH)",
                       rank_at(rank, hosts), gpus[rank].version, rank_at(0, hosts), gpus[0].version);
  }
  return {};
}

void check_gpus_and_versions(Communicator& host, const RankGpu& mine, bool share_gpus, Deadline deadline) {
  const std::vector<std::string>& hosts = host.topology().hosts;
  const std::vector<Bytes> all = host.control().gather(mine.to_bytes(), deadline);
  std::string verdict;
  if (host.topology().rank == 0) {
    std::vector<RankGpu> gpus;
    try {
      for (const Bytes& bytes : all) gpus.push_back(RankGpu::parse(bytes));
      const std::string booked = share_gpus ? "" : shared_gpu(gpus, hosts);
      if (!booked.empty()) verdict = "b" + booked;
      if (const std::string versions = version_difference(gpus, hosts); verdict.empty() && !versions.empty()) {
        verdict = "v" + versions;
      }
    } catch (const Error& error) {
      verdict = std::string("v") + error.what();
    }
  }
  verdict = text_of(host.control().broadcast(std::as_bytes(std::span(verdict)), 0, deadline));
  if (verdict.empty()) return;
  throw Error(verdict.front() == 'b' ? Errc::kInvalidArgument : Errc::kMismatch, verdict.substr(1));
}

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

void Trial::leave_memory() noexcept {
  staging_.release();
  device_.release();
}

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
