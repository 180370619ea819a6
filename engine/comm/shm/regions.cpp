#include "engine/comm/shm/regions.h"

#include <utility>

namespace hvd::comm {

std::uint64_t Regions::add(std::size_t bytes, NodeMemory memory) {
  const std::uint64_t number = next_++;
  regions_.emplace(number, Region{number, bytes, std::move(memory)});
  return number;
}

const Region* Regions::find(std::uint64_t number) const {
  const auto found = regions_.find(number);
  return found == regions_.end() ? nullptr : &found->second;
}

NodeReducer::Place Regions::locate(const std::byte* data, std::size_t bytes, int local_rank) const {
  for (const auto& [number, region] : regions_) {
    const std::byte* begin = region.memory.part(local_rank);
    if (data >= begin && data + bytes <= begin + region.bytes) {
      return {number, static_cast<std::uint64_t>(data - begin)};
    }
  }
  return {};
}

}  // namespace hvd::comm
