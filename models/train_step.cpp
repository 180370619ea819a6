#include "models/train_step.h"

#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>

#include "engine/base/align.h"
#include "engine/base/error.h"

namespace hvd::models {
namespace {

constexpr std::size_t kPage = 4096;

struct FreeBlocks {
  void operator()(std::vector<std::span<std::byte>>* blocks) const noexcept {
    for (const auto block : *blocks) std::free(block.data());
    delete blocks;
  }
};

}  // namespace

HeapArena make_heap_arena() {
  HeapArena arena;
  arena.blocks = {new std::vector<std::span<std::byte>>(), FreeBlocks{}};
  arena.allocate = [blocks = arena.blocks](std::size_t bytes) {
    const std::size_t rounded = bytes == 0 ? kPage : align_up(bytes, kPage);
    blocks->reserve(blocks->size() + 1);  // so that push_back below cannot throw and leak
    auto* memory = static_cast<std::byte*>(std::aligned_alloc(kPage, rounded));
    if (memory == nullptr) {
      throw Error(Errc::kOutOfMemory, "cannot allocate " + std::to_string(rounded) + " bytes for an arena");
    }
    std::memset(memory, 0, rounded);
    const std::span<std::byte> block(memory, bytes);
    blocks->push_back(block);
    return block;
  };
  return arena;
}

}  // namespace hvd::models
