// Judges what `hvd_bench doctor` has measured. Pure.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "bench/cli/doctor/doctor.h"
#include "bench/cli/doctor/machine_rate.h"
#include "bench/measure/units.h"
#include "bench/store/host_facts.h"

namespace hvd::bench {
namespace {

using Level = Finding::Level;

constexpr double kGiga = 1e9;

/// Returns text such as "2 nodes: 0 (processors 0-31, 16 core(s), 256.00 GiB), 1 (...); hwloc API 2.8".
std::string text_of(const NumaLayout& layout) {
  std::string text = fmt::format("{} node{}: ", layout.nodes.size(), layout.nodes.size() == 1 ? "" : "s");
  for (const NumaNode& node : layout.nodes) {
    if (&node != &layout.nodes.front()) text += ", ";
    text += fmt::format("{} (processors {}, {} core(s)", node.number, node.cpus.empty() ? "none" : cpu_list(node.cpus),
                        node.cores);
    if (node.memory_bytes > 0) text += ", " + bytes_text(static_cast<double>(node.memory_bytes));
    text += ")";
  }
  return fmt::format("{}; {}", text, layout.source);
}

}  // namespace

std::string giga_text(double value, const char* unit) { return fmt::format("{:.1f} G{}", value / kGiga, unit); }

Finding judge_vectors(const Processor& cpu) {
  constexpr const char* kSubject = "vectors";
  constexpr std::array<std::pair<const char*, const char*>, 9> kTitles{{{"avx2", "AVX2"},
                                                                        {"avx512f", "AVX-512"},
                                                                        {"avx512_bf16", "AVX-512 BF16"},
                                                                        {"amx_bf16", "AMX"},
                                                                        {"asimd", "NEON"},
                                                                        {"sve", "SVE"},
                                                                        {"sve2", "SVE2"},
                                                                        {"bf16", "BF16"},
                                                                        {"i8mm", "I8MM"}}};
  std::string vectors;
  for (const auto& [flag, title] : kTitles) {
    if (!cpu.has(flag)) continue;
    if (!vectors.empty()) vectors += ", ";
    vectors += title;
  }
  if (cpu.is_arm() || cpu.has("avx2")) return {Level::kGood, kSubject, std::move(vectors), {}};
  return {Level::kWarning, kSubject, "no AVX2: compute will be slow", "run on a newer processor"};
}

Finding judge_library(const std::string& file, const std::string& version_reason) {
  if (version_reason.empty()) return {Level::kGood, "oneDNN", file, {}};
  return {Level::kWarning, "oneDNN", fmt::format("{}: {}", file, version_reason),
          "build with a newer oneDNN (HVD_ONEDNN_ROOT; docs/onednn.md says which)"};
}

Finding judge_reference_code(const std::string& slow_reason) {
  constexpr const char* kSubject = "oneDNN code";
  if (slow_reason.empty()) return {Level::kGood, kSubject, "compiled code for every operation of every network", {}};
  return {Level::kWarning, kSubject, slow_reason,
          "use larger images or another version of oneDNN; such runs carry the caution reference_code"};
}

std::vector<Finding> judge_fp32(const Fp32Rates& rates) {
  const double peak = rates.peak.flops, fp32 = rates.convolution;
  // The measured clock may be wrong by some per cent, because a processor changes its clock.
  constexpr double kTolerance = 1.1;
  const bool too_high = peak > kTolerance * rates.threads * most_flops(rates.level, rates.peak.clock);
  const bool too_low = fp32 > peak;
  Finding top{Level::kGood,
              "peak fp32",
              fmt::format("{} in registers on {} threads ({} at {:.1f} GHz)", giga_text(peak, "FLOP/s"), rates.threads,
                          name(rates.level), rates.peak.clock / kGiga),
              {}};
  if (too_high || too_low) {
    top.level = Level::kWarning;
    top.text += too_low ? std::string(": cannot be right, because a direct convolution is faster")
                        : fmt::format(": cannot be right, because it is more than {} multiply-adds per cycle",
                                      multiply_add_units());
    top.advice = fmt::format("is another program running? is {} set, and ONEDNN_MAX_CPU_ISA not?", kMaxCpuIsa);
  }
  std::vector<Finding> findings{std::move(top)};
  if (fp32 <= 0) return findings;
  const std::string text = fmt::format("{} in a direct 3 x 3 convolution", giga_text(fp32, "FLOP/s"));
  if (too_high || too_low) {
    findings.push_back(
        {Level::kWarning, "oneDNN fp32", text + "; the measured peak is not usable", "run doctor again"});
  } else if (fp32 < 0.4 * peak) {
    findings.push_back({Level::kWarning, "oneDNN fp32",
                        fmt::format("{}, {:.0f} % of the peak", text, 100 * fp32 / peak),
                        "is another program running? is OMP_NUM_THREADS or ONEDNN_MAX_CPU_ISA set?"});
  } else {
    findings.push_back(
        {Level::kGood, "oneDNN fp32", fmt::format("{}, {:.0f} % of the peak", text, 100 * fp32 / peak), {}});
  }
  return findings;
}

Finding judge_bf16(double bf16, double fp32, const std::string& slow_reason) {
  const std::string text = fmt::format("{}, {:.1f} x fp32", giga_text(bf16, "FLOP/s"), bf16 / std::max(fp32, 1.0));
  if (!slow_reason.empty()) return {Level::kWarning, "oneDNN bf16", text, slow_reason};
  if (bf16 < fp32) {
    return {Level::kWarning, "oneDNN bf16", text,
            "is another program running? is ONEDNN_MAX_CPU_ISA set? else use --dtype fp32"};
  }
  return {Level::kGood, "oneDNN bf16", text, {}};
}

Finding judge_numa(const NumaLayout& layout, const NumaPlace& place) {
  constexpr const char* kSubject = "NUMA";
  if (layout.nodes.empty()) {
    return {Level::kNote, kSubject, "unknown: " + layout.source,
            "install hwloc (Debian: apt-get install libhwloc-dev) and build again"};
  }
  std::string text = text_of(layout);
  if (!layout.this_machine) {
    return {Level::kWarning, kSubject, std::move(text), "unset the HWLOC_ variables, by which MPI may bind ranks too"};
  }
  if (layout.nodes.size() == 1) return {Level::kGood, kSubject, std::move(text), {}};
  const std::vector<int> mine = layout.nodes_of(place.cpus);
  if (mine.empty()) {
    return {Level::kWarning, kSubject, text + "; none has a processor that this process may use",
            "compare with lscpu; unset the HWLOC_ variables, if there are any"};
  }
  text += "; this process may run on " + node_list(mine);
  if (layout.crosses(place.cpus)) {
    return {place.company ? Level::kWarning : Level::kNote, kSubject, std::move(text), std::string(binding_advice())};
  }
  const bool near = std::all_of(place.memory_nodes.begin(), place.memory_nodes.end(),
                                [&](int node) { return std::find(mine.begin(), mine.end(), node) != mine.end(); });
  if (near) return {Level::kGood, kSubject, std::move(text), {}};
  return {Level::kWarning, kSubject, fmt::format("{}, and its memory lies on {}", text, node_list(place.memory_nodes)),
          "is its node full (numastat), or does a policy say so (numactl --show)?"};
}

std::optional<Finding> judge_root(unsigned uid, const std::string& library, const Environment& environment) {
  const auto allowed = [&](const char* variable) { return value_of(environment, variable) == "1"; };
  if (uid != 0 || !library.starts_with("Open MPI")) return std::nullopt;
  if (allowed("OMPI_ALLOW_RUN_AS_ROOT") && allowed("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")) return std::nullopt;
  return Finding{Level::kNote,
                 "mpirun",
                 "refuses root unless both are set: export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                 {}};
}

}  // namespace hvd::bench
