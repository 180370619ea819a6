#include "engine/comm/nccl/rank_gpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <span>
#include <utility>

#include "engine/base/error.h"

namespace hvd::comm::nccl {

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

}  // namespace hvd::comm::nccl
