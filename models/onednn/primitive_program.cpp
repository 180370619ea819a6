#include "models/onednn/primitive_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "engine/base/align.h"
#include "engine/base/assert.h"
#include "engine/base/error.h"
#include "models/graph/memory_plan.h"

namespace hvd::models::onednn {
namespace {

// Buffers are aligned to two cache lines, so that the adjacent-line prefetcher does not fetch a neighbouring buffer.
constexpr std::size_t kAlign = 128;

std::size_t aligned(std::size_t bytes) { return align_up(bytes, kAlign); }

void touch(Buffer* buffer, int step) {
  if (buffer->first < 0) buffer->first = step;
  buffer->last = step;
}

}  // namespace

Buffer* PrimitiveProgram::new_buffer(std::string name, std::size_t bytes, Buffer::Storage storage) {
  buffers_.push_back({.name = std::move(name), .bytes = bytes, .storage = storage});
  return &buffers_.back();
}

TensorView PrimitiveProgram::new_value(std::string name, const Md& desc, Buffer::Storage storage) {
  return {new_buffer(std::move(name), desc.get_size(), storage), desc};
}

TensorView PrimitiveProgram::scratchpad(const Md& desc) {
  scratchpad_.bytes = std::max(scratchpad_.bytes, desc.get_size());
  return {&scratchpad_, desc};
}

BoundOperation PrimitiveProgram::reorder(std::string node, const TensorView& from, const TensorView& to) {
  const dnnl::reorder::primitive_desc pd(engine_, from.desc, engine_, to.desc, own_scratchpad());
  BoundOperation operation{.node = std::move(node), .kind = "reorder", .implementation = pd.impl_info_str()};
  operation.bytes = static_cast<double>(from.desc.get_size() + to.desc.get_size());
  operation.primitive = dnnl::reorder(pd);
  operation.arguments = {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}};
  if (pd.scratchpad_desc().get_size() > 0) {
    operation.arguments.push_back({DNNL_ARG_SCRATCHPAD, scratchpad(pd.scratchpad_desc())});
  }
  return operation;
}

BoundOperation& PrimitiveProgram::append(BoundOperation operation) {
  return operations_.emplace_back(std::move(operation));
}
BoundOperation& PrimitiveProgram::append_refresh(BoundOperation operation) {
  return refresh_.emplace_back(std::move(operation));
}

void PrimitiveProgram::plan() {
  for (std::size_t i = 0; i < operations_.size(); ++i) {
    const auto step = static_cast<int>(i);
    for (const Argument& argument : operations_[i].arguments) touch(argument.value.buffer, step);
    for (Buffer* buffer : operations_[i].touches) touch(buffer, step);
  }
  std::vector<BufferUse> uses;
  std::vector<Buffer*> planned;
  std::size_t persistent = 0;
  for (Buffer& buffer : buffers_) {
    if (buffer.storage == Buffer::Storage::kPersistent) persistent += aligned(buffer.bytes);
    if (buffer.storage != Buffer::Storage::kPlanned || buffer.first < 0) continue;
    if (keep_all_) {
      buffer.first = 0;
      buffer.last = static_cast<int>(operations_.size());
    }
    uses.push_back({.name = buffer.name, .bytes = buffer.bytes, .first = buffer.first, .last = buffer.last});
    planned.push_back(&buffer);
  }
  const MemoryPlan plan = plan_memory(uses, kAlign);
  activations_ = HostArena(plan.arena_bytes, "activations");
  persistent_ = HostArena(persistent, "weight copies");
  scratch_ = HostArena(scratchpad_.bytes, "the scratchpad");
  for (std::size_t i = 0; i < planned.size(); ++i) planned[i]->data = activations_.bytes().data() + plan.offsets[i];
  std::size_t offset = 0;
  for (Buffer& buffer : buffers_) {
    if (buffer.storage != Buffer::Storage::kPersistent) continue;
    buffer.data = persistent_.bytes().data() + offset;
    offset += aligned(buffer.bytes);
  }
  scratchpad_.data = scratch_.bytes().data();
}

void PrimitiveProgram::bind(BoundOperation& operation) {
  for (const Argument& argument : operation.arguments) {
    std::byte* handle = argument.value.buffer->data;
    if (handle == nullptr) {
      HVD_ASSERT(argument.value.offset == 0);
    } else {
      handle += argument.value.offset;
    }
    operation.memories.emplace_back(argument.value.desc, engine_,
                                    handle == nullptr ? DNNL_MEMORY_NONE : static_cast<void*>(handle));
    operation.bound.push_back({argument.index, operation.memories.back().get()});
    if (handle == nullptr) moving_.emplace(argument.value.buffer, operation.memories.back().get());
  }
}

void PrimitiveProgram::bind() {
  plan();
  for (BoundOperation& operation : operations_) bind(operation);
  for (BoundOperation& operation : refresh_) bind(operation);
}

void PrimitiveProgram::set_external(Buffer* buffer, void* data) {
  if (buffer->data == data) return;
  buffer->data = static_cast<std::byte*>(data);
  const auto [begin, end] = moving_.equal_range(buffer);
  for (auto it = begin; it != end; ++it) dnnl_memory_set_data_handle(it->second, data);
}

void PrimitiveProgram::execute(BoundOperation& operation, StepInput& input, bool profile) {
  using Clock = std::chrono::steady_clock;
  const auto start = profile ? Clock::now() : Clock::time_point{};
  if (operation.primitive) {
    // Use the C function, because the C++ function builds a hash map and a vector in each call.
    const dnnl_status_t status = dnnl_primitive_execute(
        operation.primitive.get(), stream_.get(), static_cast<int>(operation.bound.size()), operation.bound.data());
    if (status != dnnl_success) {
      throw Error(Errc::kBackend, fmt::format("oneDNN failed in {} ({}, {}): status {}", operation.node, operation.kind,
                                              operation.implementation, static_cast<int>(status)));
    }
  } else {
    operation.kernel(input);
  }
  if (profile) operation.seconds += std::chrono::duration<double>(Clock::now() - start).count();
}

void PrimitiveProgram::run(StepInput& input, GradientSink& sink, bool profile) {
  input.sink = &sink;
  for (BoundOperation& operation : operations_) {
    execute(operation, input, profile);
    if (operation.final_gradients.empty()) continue;
    stream_.wait();
    for (const std::size_t parameter : operation.final_gradients) sink.gradient_ready(parameter);
  }
  stream_.wait();
}

void PrimitiveProgram::refresh() {
  StepInput none;
  for (BoundOperation& operation : refresh_) execute(operation, none, false);
  stream_.wait();
}

void PrimitiveProgram::refresh_after_update(bool profile) {
  StepInput none;
  for (BoundOperation& operation : refresh_) {
    if (!operation.done_by_update) execute(operation, none, profile);
  }
  stream_.wait();
}

}  // namespace hvd::models::onednn
