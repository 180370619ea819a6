// The compiled form of a differentiated graph: buffers and a list of operations on them. The compiler (compiler.h)
// appends operations. bind() then places the buffers. After bind() the program is fixed, and running it allocates no
// memory. One thread owns and calls a PrimitiveProgram.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "models/onednn/compat.h"
#include "models/onednn/host_arena.h"
#include "models/train_step.h"

namespace hvd::models::onednn {

/// A block of memory. Its address is known after PrimitiveProgram::bind().
struct Buffer {
  enum class Storage : std::uint8_t {
    kPlanned,     ///< in the activation arena; shares memory with buffers that are not live at the same time
    kPersistent,  ///< kept between steps (weight copies)
    kScratchpad,  ///< the scratchpad that all primitives share
    kExternal,    ///< its owner sets `data`: parameter and gradient slots, running statistics, the caller's images
  };
  std::string name;
  std::size_t bytes = 0;
  Storage storage = Storage::kPlanned;
  std::byte* data = nullptr;
  int first = -1, last = -1;  ///< kPlanned: indices of the first and last operation that use the buffer
};

/// Returns the elements of a buffer as fp32.
inline const float* floats(const Buffer* buffer) { return reinterpret_cast<const float*>(buffer->data); }

/// The place and layout of a tensor.
struct TensorView {
  Buffer* buffer = nullptr;
  Md desc;
  std::size_t offset = 0;  ///< byte offset in the buffer; must be 0 if the buffer has no address at bind()
  explicit operator bool() const noexcept { return buffer != nullptr; }
};

/// Returns the attributes that every primitive has: the caller provides the scratchpad.
inline dnnl::primitive_attr own_scratchpad() {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attr;
}

/// The values that change from step to step; our own kernels use them.
struct StepInput {
  const Batch* batch = nullptr;
  GradientSink* sink = nullptr;  ///< of PrimitiveProgram::run()
  double loss = 0;
};

struct Argument {
  int index = 0;  ///< oneDNN's number of the argument: DNNL_ARG_*
  TensorView value;
};

struct BoundOperation {
  std::string node{};  ///< names of the graph nodes, joined by '+'
  std::string kind{};
  std::string implementation{};
  bool library = false;
  double flops = 0, bytes = 0;
  dnnl::primitive primitive{};  ///< empty: `kernel` does the work
  std::vector<Argument> arguments{};
  std::function<void(StepInput&)> kernel{};
  std::vector<Buffer*> touches{};              ///< buffers that `kernel` uses; `arguments` has those of a primitive
  std::vector<std::size_t> final_gradients{};  ///< parameters whose gradients are final after this operation
  bool done_by_update = false;                 ///< true for a refresh operation whose copy Parameters::update() makes

  double seconds = 0;  ///< time of the operation summed over the profiled steps
  std::vector<dnnl::memory> memories{};
  std::vector<dnnl_exec_arg_t> bound{};
};

class PrimitiveProgram {
 public:
  explicit PrimitiveProgram(dnnl::engine engine) : engine_(std::move(engine)), stream_(engine_) {}

  Buffer* new_buffer(std::string name, std::size_t bytes, Buffer::Storage storage = Buffer::Storage::kPlanned);
  TensorView new_value(std::string name, const Md& desc, Buffer::Storage storage = Buffer::Storage::kPlanned);
  /// Returns the buffer that all primitives use as scratchpad, and makes it large enough for `desc`.
  TensorView scratchpad(const Md& desc);

  /// Makes the operation, named `node`, that copies `from` to the layout and type of `to`. Appends nothing.
  [[nodiscard]] BoundOperation reorder(std::string node, const TensorView& from, const TensorView& to);
  BoundOperation& append(BoundOperation operation);
  /// Returns the operation that was appended last.
  BoundOperation& last() { return operations_.back(); }
  /// Appends an operation that refreshes a copy of the weights after an update.
  BoundOperation& append_refresh(BoundOperation operation);

  /// If `keep` is true, no buffer shares memory with another buffer.
  void keep_all(bool keep) noexcept { keep_all_ = keep; }

  /// Plans and allocates memory, and binds every argument to its address. External buffers must be set.
  void bind();
  /// Changes the address of an external buffer after bind(). Used for the caller's images.
  void set_external(Buffer* buffer, void* data);

  /// Runs one step; calls `sink` after each operation that makes gradients final. `profile`: time each operation.
  void run(StepInput& input, GradientSink& sink, bool profile);
  /// Makes all copies of the weights anew from the stored weights.
  void refresh();
  /// Makes anew only the copies of the weights that Parameters::update() does not make.
  void refresh_after_update(bool profile);

  [[nodiscard]] const dnnl::engine& engine() const noexcept { return engine_; }
  [[nodiscard]] dnnl::stream& stream() noexcept { return stream_; }
  [[nodiscard]] std::span<const BoundOperation> operations() const noexcept { return operations_; }
  [[nodiscard]] std::span<const BoundOperation> refresh_operations() const noexcept { return refresh_; }
  [[nodiscard]] std::size_t activation_bytes() const noexcept { return activations_.bytes().size(); }
  [[nodiscard]] std::size_t scratchpad_bytes() const noexcept { return scratchpad_.bytes; }
  /// Returns the bytes of persistent buffers: weight copies in other layouts.
  [[nodiscard]] std::size_t persistent_bytes() const noexcept { return persistent_.bytes().size(); }

 private:
  void plan();
  void bind(BoundOperation& operation);
  void execute(BoundOperation& operation, StepInput& input, bool profile);

  bool keep_all_ = false;
  dnnl::engine engine_;
  dnnl::stream stream_;
  std::deque<Buffer> buffers_;  // a deque, so that addresses stay valid
  Buffer scratchpad_{.name = "scratchpad", .storage = Buffer::Storage::kScratchpad};
  std::vector<BoundOperation> operations_;
  std::vector<BoundOperation> refresh_;
  std::multimap<const Buffer*, dnnl_memory_t> moving_;  // arguments whose external buffer had no address at bind()
  HostArena activations_, persistent_, scratch_;
};

}  // namespace hvd::models::onednn
