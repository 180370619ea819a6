#include "bench/train/layouts.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string_view>

#include "bench/store/host_facts.h"
#include "bench/store/key_lines.h"
#include "engine/base/error.h"
#include "engine/base/hash.h"

namespace hvd::bench {
namespace {

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
      told = first_differing_line(root, other, root_name, other_name);
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

}  // namespace

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
      std::all_of(hashes.begin(), hashes.end(), [&](const comm::Bytes& theirs) { return theirs == hashes[0]; });
  const std::string differ = equal ? "" : "differ";
  if (engine.broadcast_message(std::as_bytes(std::span(differ)), 0).empty()) return;

  const std::string lines = mine.maker + "\n" + key_lines(mine.layouts);
  const std::vector<comm::Bytes> all = engine.gather(std::as_bytes(std::span(lines)));
  const std::string text = engine.rank() == 0 ? judge_layouts(all, engine.topology()) : std::string();
  throw Error(Errc::kMismatch, comm::text_of(engine.broadcast_message(std::as_bytes(std::span(text)), 0)));
}

}  // namespace hvd::bench
