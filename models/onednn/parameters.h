// The arenas of one rank: weights, gradients, momentum and running statistics. Each arena is one block in
// gradient-production order. Parameters also has copies of the weights in the layouts and types that primitives need.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "models/onednn/kernels.h"
#include "models/onednn/primitive_program.h"
#include "models/onednn/tiled_copy.h"

namespace hvd::models::onednn {

class Parameters {
 public:
  Parameters(const Graph& graph, DataType gradient_type, PrimitiveProgram& program);

  /// Sets the layout in which parameter tensor `value` is stored in fp32. Call once per parameter.
  void set_layout(TensorId value, const Md& desc);
  /// Returns the stored weights, in fp32 and in the layout given to set_layout().
  [[nodiscard]] TensorView stored(TensorId value) const;
  /// Returns the weights in layout and type `desc`: stored() itself, or a copy that is refreshed after each update.
  TensorView derived(TensorId value, const Md& desc);
  /// Returns the slot in the gradient arena as a tensor with the layout of `desc` and the arena's type.
  [[nodiscard]] TensorView gradient(TensorId gradient, const Md& desc) const;
  [[nodiscard]] std::size_t index_of_gradient(TensorId gradient) const;
  /// Returns the running mean or variance {c}.
  [[nodiscard]] TensorView state(TensorId id) const;

  /// Lays out the slots and allocates the arenas. Call when every layout is set.
  void allocate(const ArenaAllocator& allocator);
  /// Sets weights to their initial values, running variance to 1, all else to 0. Uses the momentum arena as scratch.
  void initialise(std::uint64_t seed);
  /// Updates all weights in one pass (update.cpp), on the calling thread's OpenMP team. The pass also makes the copies
  /// that TiledCopy supports, while the new weights are in the cache. PrimitiveProgram::refresh_after_update() makes
  /// the other copies.
  void update(const SgdOptions& options);
  /// Updates only the weights in `share`, and makes no copies of weights.
  void update_share(const SgdOptions& options, std::span<const ArenaRange> share);
  void keep_momentum(std::span<const ArenaRange> share);
  [[nodiscard]] std::size_t bytes_copied_by_update() const noexcept;

  void read(std::size_t parameter, std::span<float> out);
  void write(std::size_t parameter, std::span<const float> in);
  void read_gradient(std::size_t parameter, std::span<float> out);

  [[nodiscard]] std::span<const ArenaSlot> slots() const noexcept { return slots_; }
  [[nodiscard]] DataType gradient_type() const noexcept { return gradient_type_; }
  [[nodiscard]] std::span<std::byte> gradient_arena() const noexcept { return gradient_arena_; }
  [[nodiscard]] std::span<std::byte> weight_arena() const noexcept { return weights_.bytes(); }
  [[nodiscard]] std::span<std::byte> momentum_arena() const noexcept { return momentum_.bytes(); }
  /// Returns the bytes of momentum in use. Memory that keep_momentum() has freed does not count until the next
  /// update().
  [[nodiscard]] std::size_t momentum_bytes() const noexcept { return momentum_bytes_; }
  [[nodiscard]] std::span<std::byte> state_arena() const noexcept { return states_.bytes(); }

 private:
  struct Entry {
    Md desc;  // layout of the stored weights, in fp32
    bool decay = true;
    Buffer* weight = nullptr;
    Buffer* gradient = nullptr;
    std::vector<TensorView> copies;
    std::vector<std::pair<TiledCopy, const Buffer*>> tiled;  // the subset of `copies` that update() makes
  };
  [[nodiscard]] Entry& entry(TensorId value);
  [[nodiscard]] const Entry& entry(TensorId value) const;
  /// Updates a part of a slot. If the slot has no tiled copies, updates elements [from, to). Otherwise updates all
  /// strips (TiledCopy::strip()) that start in [from, to), and makes their copies.
  void update_piece(std::size_t parameter, std::size_t from, std::size_t to, const SgdFactors& factors);
  /// Calls visit(parameter, from, to) for the elements [from, to) of each slot that lie in [begin, end) of the arena.
  template <class Visit>
  void for_each_slot(std::size_t begin, std::size_t end, Visit&& visit) const;
  void check_size(std::size_t parameter, std::size_t given) const;
  /// Copies between a slot (`stored`) and row-major memory of the caller (`logical`), in the direction `to_logical`.
  void transfer(std::size_t parameter, float* stored, float* logical, bool to_logical);

  const Graph& graph_;
  DataType gradient_type_;
  PrimitiveProgram& program_;
  std::vector<Entry> entries_;  // [parameter]
  std::map<TensorId, std::size_t> by_value_, by_gradient_;
  std::map<TensorId, Buffer*> states_by_id_;
  std::vector<ArenaSlot> slots_;
  HostArena weights_, momentum_, states_;
  std::size_t momentum_bytes_ = 0;
  std::span<std::byte> gradient_arena_;
};

/// Returns a parameter's logical row-major layout in the library's dimensions {o, i, h, w}, {o, i} or {c}.
Md row_major(const Shape& shape);

}  // namespace hvd::models::onednn
