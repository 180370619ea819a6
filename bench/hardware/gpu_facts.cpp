#include "bench/hardware/gpu_facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <string_view>
#include <utility>

#include "bench/store/host_facts.h"
#include "bench/store/key_lines.h"
#include "bench/world/options.h"
#include "engine/base/json.h"

namespace hvd::bench {
namespace {

struct Fact {
  std::string_view key;
  bool in_fingerprint;  // true if the fact can change a result
  bool alike;  // the fact should be equal on all ranks; if it differs, a note says that all wait for the slowest
};
constexpr std::array kFacts{Fact{"gpu.name", true, true},
                            Fact{"gpu.uuid", false, false},
                            Fact{"gpu.compute_capability", true, true},
                            Fact{"gpu.multiprocessors", true, true},
                            Fact{"gpu.memory_bytes", true, true},
                            Fact{"gpu.driver", true, true},
                            Fact{"gpu.cuda_driver", true, true},
                            Fact{"gpu.cuda_runtime", true, true},
                            Fact{"gpu.max_sm_mhz", true, true},
                            Fact{"gpu.sm_mhz_before", false, false},
                            Fact{"gpu.max_memory_mhz", true, true},
                            Fact{"gpu.memory_mhz_before", false, false},
                            Fact{"gpu.power_limit_watts", true, true},
                            Fact{"gpu.default_power_limit_watts", false, false},
                            Fact{"gpu.persistence", false, false},
                            Fact{"gpu.ecc", true, true},
                            Fact{"gpu.engines", false, true},
                            Fact{"gpu.visible", false, false},
                            Fact{"nccl.network", false, true},
                            Fact{"nccl.paths", false, false},
                            Fact{"gpu.link", false, true}};
// Rank 0 needs the facts with these keys for its cautions. The facts are not stored.
constexpr const char* kRanksOnHost = "ranks_on_host";
constexpr const char* kDistance = "distance";
constexpr const char* kIdleAdapters = "idle_adapters";
constexpr const char* kLinkRate = "link_gigabytes_per_second";

std::string cuda_version(int number) {
  return number <= 0 ? "" : fmt::format("{}.{}", number / 1000, number % 1000 / 10);
}

std::string positive(double value) { return value > 0 ? json_number(value) : ""; }

GpuDescription parse_lines(std::string_view text) {
  GpuDescription gpu;
  while (!text.empty()) gpu.emplace(split_line(take_line(text)));
  return gpu;
}

std::string value_of(const GpuDescription& gpu, const char* key) {
  const auto found = gpu.find(key);
  return found == gpu.end() ? "" : found->second;
}

/// A problem of some ranks: the number of these ranks, the first of them, and the text of this first rank.
struct Complaint {
  std::size_t ranks = 0, first = 0;
  std::string text;
};
template <class Says>
Complaint complaint(const std::vector<GpuDescription>& ranks, const Says& says) {
  Complaint first_complaint;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const std::string text = says(ranks[r]);
    if (text.empty()) continue;
    if (first_complaint.ranks++ == 0) first_complaint = {1, r, text};
  }
  return first_complaint;
}
std::string who(const Complaint& complaint) {
  const std::string rank = fmt::format("rank {}", complaint.first);
  return complaint.ranks > 1 ? fmt::format("{} and {} more", rank, complaint.ranks - 1) : rank;
}

void add_place_cautions(const std::vector<GpuDescription>& ranks, Provenance& provenance) {
  const Complaint alone = complaint(ranks, [](const GpuDescription& gpu) {
    const std::string here = value_of(gpu, kRanksOnHost);
    return value_of(gpu, "gpu.visible") == "1" && !here.empty() && here != "1" ? here : "";
  });
  if (alone.ranks > 0) {
    add_caution(provenance, "one_visible_gpu",
                fmt::format("{} sees one GPU though {} ranks run on its host: NCCL may lose NVLink; let every rank see "
                            "all GPUs of its host (srun --gpus-per-node with --gpu-bind=none, not --gpus-per-task; no "
                            "CUDA_VISIBLE_DEVICES per rank)",
                            who(alone), alone.text));
  }
  const Complaint far = complaint(ranks, [](const GpuDescription& gpu) { return value_of(gpu, kDistance); });
  if (far.ranks > 0) {
    add_caution(provenance, "gpu_far_from_cpus",
                fmt::format("{} may run on {}: bind ranks to the processors near their GPUs (srun "
                            "--distribution=block:block --cpu-bind=cores, mpirun --map-by)",
                            who(far), far.text));
  }
  const Complaint idle = complaint(ranks, [](const GpuDescription& gpu) { return value_of(gpu, kIdleAdapters); });
  if (idle.ranks > 0) {
    add_caution(provenance, "nccl_over_sockets",
                fmt::format("{} uses sockets between nodes, though {} of its host has a link: NCCL_DEBUG=INFO says why "
                            "NCCL does not use it (no libibverbs; a container without /dev/infiniband or with a small "
                            "memlock; NCCL_IB_DISABLE or NCCL_IB_HCA; on EFA no plugin aws-ofi-nccl)",
                            who(idle), idle.text));
  }
}

/// Returns the different values of `key` in rank order, each with the first rank that has it.
std::vector<std::pair<std::string, std::size_t>> values_of(const std::vector<GpuDescription>& ranks,
                                                           const std::string& key) {
  std::vector<std::pair<std::string, std::size_t>> values;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const auto found = ranks[r].find(key);
    const std::string value = found == ranks[r].end() ? "unknown" : found->second;
    const bool seen =
        std::any_of(values.begin(), values.end(), [&](const auto& known) { return known.first == value; });
    if (!seen) values.emplace_back(value, r);
  }
  return values;
}

}  // namespace

GpuDescription describe_gpu(const gpu::Device& device, const BoardFacts& board, int driver_version,
                            int runtime_version) {
  GpuDescription gpu{
      {"gpu.name", device.name},
      {"gpu.uuid", device.uuid},
      {"gpu.compute_capability", fmt::format("{}.{}", device.compute_major, device.compute_minor)},
      {"gpu.multiprocessors", std::to_string(device.multiprocessors)},
      {"gpu.memory_bytes", std::to_string(device.memory_bytes)},
      {"gpu.driver", board.driver},
      {"gpu.cuda_driver", cuda_version(driver_version)},
      {"gpu.cuda_runtime", cuda_version(runtime_version)},
      {"gpu.max_sm_mhz", positive(board.max_sm_mhz)},
      {"gpu.sm_mhz_before", positive(board.sm_mhz)},
      {"gpu.max_memory_mhz", positive(board.max_memory_mhz)},
      {"gpu.memory_mhz_before", positive(board.memory_mhz)},
      {"gpu.power_limit_watts", positive(board.power_limit_watts)},
      {"gpu.default_power_limit_watts", positive(board.default_power_limit_watts)},
      {"gpu.persistence", board.persistence},
      {"gpu.ecc", board.ecc},
  };
  std::erase_if(gpu, [](const auto& fact) { return fact.second.empty(); });
  return gpu;
}

void describe_place(GpuDescription& gpu, const gpu::Device& device, const BoardFacts& board, const RankPlace& place) {
  gpu["gpu.visible"] = std::to_string(device.visible);
  gpu[kRanksOnHost] = std::to_string(place.ranks_on_host);
  if (std::string far = distance(place.cpus, cpus_near(device.pci_bus_id, place.sys)); !far.empty()) {
    gpu[kDistance] = std::move(far);
  }
  if (place.ranks == 1) return;
  const NcclNetwork network = parse_nccl_log(place.nccl_log);
  gpu["nccl.network"] = network.text();
  if (std::string paths = network.paths_text(); !paths.empty()) gpu["nccl.paths"] = std::move(paths);
  const Link link = place.nodes > 1 ? network_link(network, place.ranks_on_host, place.sys) : gpu_link(board);
  if (std::string idle = idle_adapters(network, place.sys); place.nodes > 1 && !idle.empty()) {
    gpu[kIdleAdapters] = std::move(idle);
  }
  if (link.gigabytes_per_second <= 0) return;
  gpu["gpu.link"] = link.name;
  gpu[kLinkRate] = json_number(link.gigabytes_per_second);
}

GpuFacts merge_gpu_facts(const std::vector<GpuDescription>& ranks) {
  GpuFacts facts;
  add_place_cautions(ranks, facts.provenance);
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const std::string rate = value_of(ranks[r], kLinkRate);
    const Link link{value_of(ranks[r], "gpu.link"), rate.empty() ? 0 : std::stod(rate)};
    if (r == 0 || link.gigabytes_per_second < facts.link.gigabytes_per_second) facts.link = link;
  }
  for (const Fact& fact : kFacts) {
    const std::string key(fact.key);
    const auto values = values_of(ranks, key);
    const bool known = std::any_of(ranks.begin(), ranks.end(), [&](const auto& gpu) { return gpu.count(key) > 0; });
    if (!known) continue;
    if (key == "nccl.network") facts.notes.push_back("NCCL's network: " + values[0].first);
    std::string all;
    for (const auto& [value, rank] : values) all += (all.empty() ? "" : "; ") + value;
    facts.provenance.insert({key, {all, fact.in_fingerprint}});
    if (!fact.alike || values.size() == 1) continue;
    facts.notes.push_back(
        fmt::format("caution: the ranks' GPUs differ in {}: {} on rank 0, {} on rank {}{}; all wait for the slowest",
                    key.substr(key.find('.') + 1), values[0].first, values[1].first, values[1].second,
                    values.size() > 2 ? ", and others" : ""));
  }
  return facts;
}

GpuDescription describe_rank(const gpu::Device& device, const gpu::DeviceList& list, const comm::Topology& where,
                             const std::string& nccl_log) {
  const BoardFacts board = board_facts(device.uuid);
  GpuDescription gpu = describe_gpu(device, board, list.driver_version, list.runtime_version);
  describe_place(gpu, device, board,
                 {.ranks_on_host = where.local_size,
                  .nodes = where.nodes,
                  .ranks = where.size,
                  .cpus = affinity(),
                  .nccl_log = nccl_log});
  return gpu;
}

GpuFacts gather_gpu_facts(const GpuDescription& mine, const GatherMessages& gather) {
  const std::string text = key_lines(mine);
  std::vector<GpuDescription> ranks;
  for (const comm::Bytes& bytes : gather(std::as_bytes(std::span(text)))) {
    ranks.push_back(parse_lines(comm::text_of(bytes)));
  }
  return ranks.empty() ? GpuFacts{} : merge_gpu_facts(ranks);
}

void add_gpu_options(Provenance& provenance, const GpuOptions& options, bool graph) {
  const auto add = [&](const char* key, std::string value) {
    provenance.insert({std::string("gpu.option.") + key, {std::move(value), true}});
  };
  add("graph", graph ? "yes" : "no");
  add("launch_ahead", graph && options.schedule.ahead ? "yes" : "no");
  add("loss_scale", options.loss_scale > 0 ? json_number(options.loss_scale) : "dynamic");
  add("tune", options.tunes() ? "yes" : "no");
  add("nccl_max_ctas", options.nccl.max_ctas > 0 ? std::to_string(options.nccl.max_ctas) : "NCCL's choice");
}

}  // namespace hvd::bench
