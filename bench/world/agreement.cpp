#include "bench/world/agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string_view>

#include "bench/store/build_info.h"
#include "bench/store/host_facts.h"
#include "bench/store/key_lines.h"
#include "engine/base/error.h"
#include "engine/base/hash.h"
#include "engine/base/json.h"
#include "engine/base/vector_level.h"
#include "models/replay/replay.h"

namespace hvd::bench {
namespace {

/// Returns "NAME is A on ... and B on ..." for the first line that differs; empty if all lines are equal.
std::string difference(std::string_view root, std::string_view other, const std::string& root_name,
                       const std::string& other_name) {
  while (!root.empty() || !other.empty()) {
    const std::string_view first = take_line(root);
    const std::string_view second = take_line(other);
    if (first == second) continue;
    const auto [name, value] = split_line(first);
    return fmt::format("{} is {} on {} and {} on {}", name, value, root_name, split_line(second).second, other_name);
  }
  return {};
}

std::string judge(const std::vector<comm::Bytes>& all, const comm::Topology& topology) {
  const auto rank_name = [&](std::size_t rank) {
    return fmt::format("rank {} (host {})", rank, topology.hosts.at(rank));
  };
  std::string verdict;
  std::size_t others = 0;
  for (std::size_t r = 1; r < all.size(); ++r) {
    if (all[r] == all[0]) continue;
    if (verdict.empty()) {
      verdict = difference(comm::text_of(all[0]), comm::text_of(all[r]), rank_name(0), rank_name(r));
    } else {
      ++others;
    }
  }
  if (verdict.empty()) return {};
  if (others > 0) verdict += fmt::format(", and {} more differ from rank 0", others);
  return fmt::format(
      "the ranks were not started alike: {}; give all of them the same program, options and HOROVOD_* variables "
      "(mpirun -x NAME forwards one)",
      verdict);
}

/// Returns the error text for ranks with different layouts. `all` is indexed by rank. Each rank's message has one line
/// for the maker of the layouts, then one line per parameter.
std::string judge_layouts(const std::vector<comm::Bytes>& all, const comm::Topology& topology) {
  std::string told;
  std::size_t others = 0;
  for (std::size_t r = 1; r < all.size(); ++r) {
    const std::string first = comm::text_of(all[0]), second = comm::text_of(all[r]);
    std::string_view root = first, other = second;
    const auto place = [&](std::size_t rank, std::string_view& text) {
      return fmt::format("rank {} (host {}, {})", rank, topology.hosts.at(rank), take_line(text));
    };
    const std::string root_name = place(0, root), other_name = place(r, other);
    if (root == other) continue;
    if (told.empty()) {
      told = difference(root, other, root_name, other_name);
    } else {
      ++others;
    }
  }
  if (others > 0) told += fmt::format(", and {} more ranks differ from rank 0", others);
  return fmt::format(
      "the ranks store their parameters in different layouts: {}; gradients are summed as they lie in memory: use "
      "processors of one kind, or give all ranks one ONEDNN_MAX_CPU_ISA (mpirun -x NAME forwards it)",
      told);
}

/// Collective. Rank 0 calls judge() with the texts of all ranks, and all ranks return what judge() returned.
template <class Judge>
std::string verdict(comm::Communicator& communicator, const std::string& mine, Judge&& judge, Deadline deadline) {
  comm::ControlPlane& control = communicator.control();
  const comm::Topology& topology = communicator.topology();
  const std::vector<comm::Bytes> all = control.gather(std::as_bytes(std::span(mine)), deadline);
  const std::string found = topology.rank == 0 ? judge(all, topology) : std::string();
  return comm::text_of(control.broadcast(std::as_bytes(std::span(found)), 0, deadline));
}

std::string yes_no(bool value) { return value ? "on" : "off"; }

/// The options that must be equal in every run, on CPUs and GPUs.
RunSettings common_wishes(const Options& options, const Setup& setup) {
  const EngineOptions& engine = options.engine;
  return {
      {"the program", fmt::format("{} of commit {}", build_info().version, build_info().git_commit)},
      {"--model", setup.model.model},
      {"--device", std::string(setup.device_name())},
      {"--batch-size", std::to_string(setup.model.batch_size)},
      {"--image-size", std::to_string(setup.model.image_size)},
      {"--classes", std::to_string(setup.model.classes)},
      {"--auxiliary-head", yes_no(setup.model.auxiliary_head)},
      {"--replay", setup.replay ? "a profile of hash " + hex64(Hasher().text(to_text(*setup.replay)).value()) : "off"},
      {"--dtype", setup.compute_name()},
      {std::string(kMaxCpuIsa), vector_level_limit().empty() ? "not set" : vector_level_limit()},
      {"--no-winograd", yes_no(!setup.winograd)},
      {"--allreduce-dtype", std::string(hvd::name(setup.allreduce))},
      {"--threads", options.threads > 0 ? std::to_string(options.threads) : "the share of the cores"},
      {"--seed", std::to_string(setup.seed)},
      {"--labels", std::string(models::name(setup.labels))},
      {"--learning-rate", json_number(setup.sgd.learning_rate)},
      {"--schedule", std::string(hvd::name(setup.schedule))},
      {"--algorithm", std::string(comm::name(options.comm_options.algorithm))},
      {"--bucket-mb (bytes)", std::to_string(engine.buckets.bucket_bytes)},
      {"--fusion-threshold-mb (bytes)", std::to_string(engine.negotiation.fusion.threshold_bytes)},
      {"--cycle-time-ms (microseconds)", std::to_string(engine.cycle_time.count())},
      {"--segment-kb (bytes)", std::to_string(options.comm_options.segment_bytes)},
      {"--tune-schedule", yes_no(setup.tuning.on)},
      {"--bucket-mb given", yes_no(setup.tuning.buckets_given)},
      {"--tuning-folder", setup.gpu.tuning_folder.empty() ? "not given" : "given"},
      {"--cache-capacity", std::to_string(engine.negotiation.cache_capacity)},
      {"the command", setup.equal_batches ? "validate" : "train"},
      {"--efficiency", yes_no(setup.interleaved)},
      {"--fit", yes_no(options.fit)},
      {"--profile", yes_no(setup.profile)},
      {"--timeline-filename", yes_no(!engine.timeline_filename.empty())},
  };
}

}  // namespace

RunSettings settings_of(const Options& options, const Setup& setup) {
  RunSettings settings = common_wishes(options, setup);
  if (setup.device == Device::kCuda) {
    const GpuOptions& gpu = setup.gpu;
    settings.insert(settings.end(), {{"--fusion-level", std::to_string(gpu.fusion_level)},
                                     {"CUDA graphs", yes_no(gpu.schedule.graph)},
                                     {"launching ahead", yes_no(gpu.schedule.ahead)},
                                     {"overlap", yes_no(gpu.schedule.overlap)},
                                     {"--deterministic", yes_no(gpu.deterministic)},
                                     {"--loss-scale", json_number(gpu.loss_scale)},
                                     {"--tune", yes_no(gpu.tune)},
                                     {"--nccl-max-ctas", std::to_string(gpu.nccl.max_ctas)},
                                     {"NCCL registration", yes_no(gpu.nccl.register_memory)},
                                     {"--share-gpus", yes_no(gpu.nccl.share_gpus)}});
  }
  return settings;
}

void require_agreement(comm::Communicator& communicator, const RunSettings& mine, Deadline deadline) {
  if (communicator.topology().size == 1) return;
  const std::string agreed = verdict(communicator, key_lines(mine), judge, deadline);
  if (!agreed.empty()) throw Error(Errc::kMismatch, agreed);
}

std::uint64_t StoredLayouts::hash() const { return Hasher().text(key_lines(layouts)).value(); }

StoredLayouts stored_layouts(const models::TrainStep& step) {
  StoredLayouts stored{processor().model + ", " + step.description(), {}};
  for (const models::ArenaSlot& slot : step.slots()) {
    if (!slot.layout.empty()) stored.layouts.emplace_back(slot.name, slot.layout);
  }
  return stored;
}

void require_equal_layouts(Engine& engine, const StoredLayouts& mine) {
  if (engine.size() == 1) return;
  const std::string hash = hex64(mine.hash());
  const std::vector<comm::Bytes> hashes = engine.gather(std::as_bytes(std::span(hash)));
  const bool equal =
      std::all_of(hashes.begin(), hashes.end(), [&](const comm::Bytes& one) { return one == hashes[0]; });
  const std::string differ = equal ? "" : "differ";
  if (engine.broadcast_message(std::as_bytes(std::span(differ)), 0).empty()) return;

  const std::string lines = mine.maker + "\n" + key_lines(mine.layouts);
  const std::vector<comm::Bytes> all = engine.gather(std::as_bytes(std::span(lines)));
  const std::string text = engine.rank() == 0 ? judge_layouts(all, engine.topology()) : std::string();
  throw Error(Errc::kMismatch, comm::text_of(engine.broadcast_message(std::as_bytes(std::span(text)), 0)));
}

void require_no_objection(comm::Communicator& communicator, const std::string& objection, Deadline deadline) {
  const auto first = [](const std::vector<comm::Bytes>& all, const comm::Topology&) {
    const auto found = std::find_if(all.begin(), all.end(), [](const comm::Bytes& one) { return !one.empty(); });
    return found == all.end() ? std::string() : comm::text_of(*found);
  };
  const std::string agreed = verdict(communicator, objection, first, deadline);
  if (!agreed.empty()) throw Error(Errc::kInvalidArgument, agreed);
}

}  // namespace hvd::bench
