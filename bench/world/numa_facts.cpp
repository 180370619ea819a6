#include "bench/world/numa_facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "bench/store/host_facts.h"
#include "bench/store/key_lines.h"

namespace hvd::bench {
namespace {

constexpr std::string_view kCpus = "cpus";

struct Host {
  NumaLayout layout;
  int ranks = 0;
};

std::map<std::string, Host> hosts_of(const std::vector<NumaReport>& ranks, const std::vector<std::string>& names) {
  std::map<std::string, Host> hosts;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    Host& host = hosts[names[r]];
    ++host.ranks;
    if (host.layout.source.empty()) host.layout = ranks[r].layout;
  }
  return hosts;
}

/// Returns the sources of all hosts, each once, such as "hwloc API 2.8".
std::string sources(const std::vector<NumaReport>& ranks) {
  std::vector<std::string> found;
  std::string text;
  for (const NumaReport& rank : ranks) {
    const std::string& source = rank.layout.source;
    if (source.empty() || std::find(found.begin(), found.end(), source) != found.end()) continue;
    found.push_back(source);
    text += (text.empty() ? "" : "; ") + source;
  }
  return text;
}

/// Returns "node 0: ranks 0-3; node 1: ranks 4-7". The groups are in the order of their lowest ranks.
std::string ranks_by_nodes(const std::vector<std::string>& nodes_of_rank) {
  std::vector<std::pair<std::string, std::vector<int>>> groups;
  for (std::size_t r = 0; r < nodes_of_rank.size(); ++r) {
    const auto same = [&](const auto& group) { return group.first == nodes_of_rank[r]; };
    auto group = std::find_if(groups.begin(), groups.end(), same);
    if (group == groups.end()) group = groups.insert(groups.end(), {nodes_of_rank[r], {}});
    group->second.push_back(static_cast<int>(r));
  }
  std::string text;
  for (const auto& [nodes, members] : groups) {
    text += fmt::format("{}{}: {} {}", text.empty() ? "" : "; ", nodes, members.size() == 1 ? "rank" : "ranks",
                        cpu_list(members));
  }
  return text;
}

std::string place(std::size_t rank, std::size_t more, const std::string& nodes, const std::string& host) {
  return fmt::format("rank {}{} may run on NUMA {} of host {}", rank, more > 0 ? fmt::format(" and {} more", more) : "",
                     nodes, host);
}

}  // namespace

NumaReport numa_report(bool first_of_host, const Environment& environment) {
  NumaReport report{affinity(), {}};
  if (first_of_host) report.layout = NumaTopology::of_machine(environment).layout();
  return report;
}

std::string to_text(const NumaReport& report) {
  const std::string text = fmt::format("{}={}\n", kCpus, cpu_list(report.cpus));
  return report.layout.source.empty() ? text : text + to_text(report.layout);
}

NumaReport parse_numa_report(std::string_view text) {
  NumaReport report;
  const auto [name, value] = split_line(take_line(text));
  if (name == kCpus) report.cpus = parse_cpu_list(value);
  report.layout = parse_numa_layout(text);
  return report;
}

NumaFacts judge_numa(const std::vector<NumaReport>& ranks, const std::vector<std::string>& names,
                     const NumaKind& kind) {
  NumaFacts facts;
  if (std::string text = sources(ranks); !text.empty()) facts.provenance["numa.topology"] = {std::move(text), false};
  const std::map<std::string, Host> hosts = hosts_of(ranks, names);
  std::vector<std::string> nodes_of_rank;
  std::vector<std::size_t> crossing;  // ranks that may run on several nodes and are not alone on their host
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const Host& host = hosts.at(names[r]);
    const std::vector<int> nodes = host.layout.known() ? host.layout.nodes_of(ranks[r].cpus) : std::vector<int>();
    nodes_of_rank.push_back(nodes.empty() ? "unknown" : node_list(nodes));
    if (nodes.empty() || !host.layout.crosses(ranks[r].cpus) || kind.on_gpus) continue;
    if (host.ranks > 1) {
      crossing.push_back(r);
    } else if (facts.notes.empty()) {
      facts.notes.push_back(place(r, 0, nodes_of_rank[r], names[r]) +
                            " and is the only rank there: part of its memory is far from part of its threads; compare "
                            "with one rank per node (mpirun --map-by numa --bind-to numa, srun --cpu-bind=ldoms)");
    }
  }
  const bool known = std::any_of(nodes_of_rank.begin(), nodes_of_rank.end(),
                                 [](const std::string& nodes) { return nodes != "unknown"; });
  // This fact is not in the fingerprint. It follows from cpu.affinity, which is not in the fingerprint either. Records
  // before 2026-11-25 do not have this fact.
  if (known) facts.provenance["numa.of_rank"] = {ranks_by_nodes(nodes_of_rank), false};
  if (crossing.empty()) return facts;
  const std::size_t first = crossing.front();
  add_caution(facts.provenance, "rank_across_numa_nodes",
              fmt::format("{}: memory stays on the node whose processor touches it first, and processors of other "
                          "nodes read it more slowly; {}{}",
                          place(first, crossing.size() - 1, nodes_of_rank[first], names[first]),
                          kind.threads ? "start the ranks as processes, and " : "", binding_advice()));
  return facts;
}

NumaFacts gather_numa_facts(const comm::Topology& topology, const NumaKind& kind, const Environment& environment,
                            const GatherMessages& gather) {
  const std::string mine = to_text(numa_report(topology.local_rank == 0, environment));
  std::vector<NumaReport> ranks;
  for (const comm::Bytes& theirs : gather(std::as_bytes(std::span(mine)))) {
    ranks.push_back(parse_numa_report(comm::text_of(theirs)));
  }
  return topology.rank == 0 ? judge_numa(ranks, topology.hosts, kind) : NumaFacts{};
}

}  // namespace hvd::bench
