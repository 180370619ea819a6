#include "bench/store/numa.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <utility>

#include "bench/store/host_facts.h"
#include "bench/store/key_lines.h"

namespace hvd::bench {
namespace {

constexpr std::string_view kSource = "source", kThisMachine = "this_machine", kNode = "node.";

bool has(const NumaNode& node, int cpu) { return std::binary_search(node.cpus.begin(), node.cpus.end(), cpu); }

}  // namespace

std::vector<int> NumaLayout::nodes_of(const std::vector<int>& cpus) const {
  std::vector<int> found;
  for (const NumaNode& node : nodes) {
    if (std::any_of(cpus.begin(), cpus.end(), [&](int cpu) { return has(node, cpu); })) found.push_back(node.number);
  }
  return found;
}

bool NumaLayout::crosses(const std::vector<int>& cpus) const {
  std::vector<int> placed;
  std::copy_if(cpus.begin(), cpus.end(), std::back_inserter(placed), [&](int cpu) {
    return std::any_of(nodes.begin(), nodes.end(), [&](const NumaNode& node) { return has(node, cpu); });
  });
  return std::none_of(nodes.begin(), nodes.end(), [&](const NumaNode& node) {
    return std::all_of(placed.begin(), placed.end(), [&](int cpu) { return has(node, cpu); });
  });
}

std::string to_text(const NumaLayout& layout) {
  std::vector<std::pair<std::string, std::string>> lines{
      {std::string(kSource), layout.source}, {std::string(kThisMachine), layout.this_machine ? "yes" : "no"}};
  for (const NumaNode& node : layout.nodes) {
    lines.emplace_back(std::string(kNode) + std::to_string(node.number), cpu_list(node.cpus));
  }
  return key_lines(lines);
}

NumaLayout parse_numa_layout(std::string_view text) {
  NumaLayout layout;
  while (!text.empty()) {
    auto [name, value] = split_line(take_line(text));
    if (name == kSource) layout.source = value;
    if (name == kThisMachine) layout.this_machine = value == "yes";
    if (!name.starts_with(kNode)) continue;
    name.remove_prefix(kNode.size());
    NumaNode node;
    const auto [end, trouble] = std::from_chars(name.data(), name.data() + name.size(), node.number);
    if (trouble != std::errc() || end != name.data() + name.size()) continue;
    node.cpus = parse_cpu_list(value);
    layout.nodes.push_back(std::move(node));
  }
  return layout;
}

std::string node_list(const std::vector<int>& nodes) {
  return (nodes.size() == 1 ? "node " : "nodes ") + cpu_list(nodes);
}

std::string_view binding_advice() {
  return "bind each rank to one node: srun --cpu-bind=ldoms, mpirun --map-by numa --bind-to numa, or jsrun -c CORES "
         "-b packed:CORES -d packed";
}

NumaTopology::NumaTopology(Handle handle, NumaLayout layout) : handle_(std::move(handle)), layout_(std::move(layout)) {}

}  // namespace hvd::bench
