// What a differentiated graph is compiled into: buffers and a list of operations on them. The compiler
// (compiler.h) appends; bind() then places the buffers and freezes everything, after which running it
// allocates nothing. Owned and called by one thread.
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

/// A piece of memory. Its address is known after Program::bind().
struct Buffer {
  enum class Home : std::uint8_t {
    kPlanned,     ///< in the activation arena, shared with others by liveness
    kPersistent,  ///< kept between steps (weight copies, running statistics)
    kScratchpad,  ///< the one scratchpad that all primitives share
    kExternal,    ///< whoever made it sets `data`: parameter and gradient slots, the caller's images
  };
  std::string name;
  std::size_t bytes = 0;
  Home home = Home::kPlanned;
  std::byte* data = nullptr;
  int first = -1, last = -1;  ///< operations that touch it (kPlanned)
};

/// The elements of a buffer of fp32.
inline const float* floats(const Buffer* buffer) { return reinterpret_cast<const float*>(buffer->data); }

/// A tensor's place and layout.
struct Value {
  Buffer* buffer = nullptr;
  Md desc;
  std::size_t offset = 0;  ///< bytes into the buffer, of a part of a tensor; 0 in external buffers set after bind()
  explicit operator bool() const noexcept { return buffer != nullptr; }
};

/// What changes from step to step; own kernels read it.
struct StepInput {
  const Batch* batch = nullptr;
  double loss = 0;
};

struct Argument {
  int index = 0;  ///< DNNL_ARG_*
  Value value;
};

struct Operation {
  std::string node{};  ///< graph nodes, joined by '+'
  std::string kind{};
  std::string implementation{};
  bool library = false;
  double flops = 0, bytes = 0;
  dnnl::primitive primitive{};  ///< empty: `kernel` does the work
  std::vector<Argument> arguments{};
  std::function<void(StepInput&)> kernel{};
  std::vector<Buffer*> touches{};              ///< of the kernel; those of a primitive are its arguments
  std::vector<std::size_t> final_gradients{};  ///< parameters whose gradients are final after it
  bool done_by_update = false;                 ///< of a refresh: Parameters::update() does the same on its way

  double seconds = 0;  ///< summed over the steps, when profiling
  std::vector<dnnl::memory> memories{};
  std::vector<dnnl_exec_arg_t> bound{};
};

class Program {
 public:
  explicit Program(dnnl::engine engine) : engine_(std::move(engine)), stream_(engine_) {}

  Buffer* new_buffer(std::string name, std::size_t bytes, Buffer::Home home = Buffer::Home::kPlanned);
  Value new_value(std::string name, const Md& desc, Buffer::Home home = Buffer::Home::kPlanned);
  /// The buffer that every primitive gets as its scratchpad; grows to the largest demand.
  Value scratchpad(const Md& desc);

  /// Operations of one step, in order.
  Operation& append(Operation operation);
  /// The operation that was appended last.
  Operation& last() { return operations_.back(); }
  /// Operations that rebuild derived weights after an update.
  Operation& append_refresh(Operation operation);

  /// No buffer shares memory with another.
  void keep_all(bool keep) noexcept { keep_all_ = keep; }

  /// Plans and allocates memory, and binds every argument to its address. External buffers must be set.
  void bind();
  /// Points an external buffer somewhere else, after bind(): the caller's images.
  void set_external(Buffer* buffer, void* data);

  /// Runs one step; calls `sink` after the operations that make gradients final. `profile`: time each one.
  void run(StepInput& input, GradientSink& sink, bool profile);
  /// Rebuilds derived weights from whatever is stored now.
  void refresh();
  /// The part of it that Parameters::update() leaves to do.
  void refresh_after_update(bool profile);

  [[nodiscard]] const dnnl::engine& engine() const noexcept { return engine_; }
  [[nodiscard]] dnnl::stream& stream() noexcept { return stream_; }
  [[nodiscard]] std::span<const Operation> operations() const noexcept { return operations_; }
  [[nodiscard]] std::span<const Operation> refresh_operations() const noexcept { return refresh_; }
  [[nodiscard]] std::size_t activation_bytes() const noexcept { return activations_.bytes().size(); }
  [[nodiscard]] std::size_t scratchpad_bytes() const noexcept { return scratchpad_.bytes; }
  /// Persistent buffers: weight copies in other layouts.
  [[nodiscard]] std::size_t persistent_bytes() const noexcept { return persistent_.bytes().size(); }

 private:
  void plan();
  void bind(Operation& operation);
  void execute(Operation& operation, StepInput& input, bool profile);

  bool keep_all_ = false;
  dnnl::engine engine_;
  dnnl::stream stream_;
  std::deque<Buffer> buffers_;  // deque: addresses stay
  Buffer scratchpad_{.name = "scratchpad", .home = Buffer::Home::kScratchpad};
  std::vector<Operation> operations_;
  std::vector<Operation> refresh_;
  std::multimap<const Buffer*, dnnl_memory_t> moving_;  // arguments in external buffers unset at bind()
  HostArena activations_, persistent_, scratch_;
};

}  // namespace hvd::models::onednn
