#include "bench/session/rank_kind.h"

#include <fmt/format.h>
#include <gnu/libc-version.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <string_view>
#include <utility>

#include "bench/store/host_facts.h"
#include "bench/store/key_lines.h"
#include "bench/store/provenance.h"
#include "engine/base/vector_level.h"

namespace hvd::bench {
namespace {

constexpr std::array kGpuFacts{"gpu.name",   "gpu.compute_capability", "gpu.multiprocessors", "gpu.memory_bytes",
                               "gpu.driver", "gpu.cuda_driver",        "gpu.cuda_runtime",    "gpu.engines"};
constexpr std::array kComputingLibraries{"onednn", "gomp", "omp", "iomp", "tbb"};

/// Returns "NAME is A, not B" for the first line that differs.
std::string first_difference(std::string_view lines, std::string_view first) {
  while (!lines.empty() || !first.empty()) {
    const std::string_view mine = take_line(lines), theirs = take_line(first);
    if (mine == theirs) continue;
    const auto [name, value] = split_line(mine);
    return fmt::format("{} is {}, not {}", name, value, split_line(theirs).second);
  }
  return {};
}

}  // namespace

RankKind kind_of_rank(const models::TrainStep& step, const GpuDescription& gpu) {
  std::vector<std::pair<std::string, std::string>> lines;
  const auto known = [&](const char* key) {
    const auto found = gpu.find(key);
    return found == gpu.end() ? std::string() : found->second;
  };
  if (gpu.empty()) {
    lines.emplace_back("processor", processor().model);
    lines.emplace_back("vectors", name(vector_level()));
  } else {
    for (const char* key : kGpuFacts) lines.emplace_back(key, known(key));
  }
  lines.emplace_back("backend", step.description());
  lines.emplace_back("program", binary_hash());
  lines.emplace_back("glibc", gnu_get_libc_version());
  const std::map<std::string, std::string> libraries = loaded_libraries();
  for (const char* library : kComputingLibraries) {
    const auto found = libraries.find(library);
    // The file's name contains the version. A missing library gets a line too, so that the ranks' lines match up.
    lines.emplace_back(
        library, found == libraries.end() ? std::string() : std::filesystem::path(found->second).filename().string());
  }
  return {known("gpu.uuid"), key_lines(lines)};
}

std::vector<RankKind> gather_kinds(Engine& engine, const RankKind& mine) {
  const std::string text = mine.gpu + "\n" + mine.lines;
  std::vector<RankKind> kinds;
  for (const comm::Bytes& message : engine.gather(std::as_bytes(std::span(text)))) {
    const std::string told = comm::text_of(message);
    std::string_view lines = told;
    const std::string_view gpu = take_line(lines);
    kinds.push_back({std::string(gpu), std::string(lines)});
  }
  return kinds;
}

std::vector<std::vector<std::size_t>> groups_of(std::span<const RankKind> kinds) {
  std::vector<std::vector<std::size_t>> groups;
  std::map<std::string_view, std::size_t> by_lines;
  for (std::size_t r = 0; r < kinds.size(); ++r) {
    const auto [place, is_new] = by_lines.try_emplace(kinds[r].lines, groups.size());
    if (is_new) groups.emplace_back();
    groups[place->second].push_back(r);
  }
  return groups;
}

std::vector<std::string> group_titles(std::span<const RankKind> kinds,
                                      const std::vector<std::vector<std::size_t>>& groups) {
  std::vector<std::string> titles;
  for (const std::vector<std::size_t>& group : groups) {
    std::string_view lines = kinds[group.front()].lines;
    std::string title(split_line(lines.substr(0, lines.find('\n'))).second);
    if (!titles.empty()) title += fmt::format(" ({})", first_difference(lines, kinds.front().lines));
    titles.push_back(std::move(title));
  }
  return titles;
}

std::string unlike_ranks(std::span<const RankKind> kinds, const std::vector<std::string>& hosts) {
  const std::vector<std::vector<std::size_t>> groups = groups_of(kinds);
  std::string text;
  for (std::size_t g = 1; g < groups.size(); ++g) {
    const std::size_t rank = groups[g].front(), more = groups[g].size() - 1;
    text += fmt::format("{}{}{}: {}", g > 1 ? "; " : "", comm::rank_at(rank, hosts),
                        more == 0 ? "" : fmt::format(" and {} more", more),
                        first_difference(kinds[rank].lines, kinds.front().lines));
  }
  if (text.empty()) return text;
  return "the ranks are not alike, and all wait for the slowest. Compared with rank 0, " + text;
}

}  // namespace hvd::bench
