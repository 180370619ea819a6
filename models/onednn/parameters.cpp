#include "models/onednn/parameters.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "engine/base/align.h"
#include "engine/base/assert.h"
#include "engine/base/error.h"
#include "models/onednn/kernels.h"
#include "models/onednn/threads.h"
#include "models/random.h"

namespace hvd::models::onednn {
namespace {

// Slots start at multiples of this many elements. These are multiples of 64 bytes in fp32 and in bf16, so all arenas
// can have the same offsets.
constexpr std::size_t kSlotAlign = 32;

std::size_t slot_count(const Md& desc) { return desc.get_size() / sizeof(float); }

}  // namespace

Md row_major(const Shape& shape) {
  switch (shape.rank()) {
    case 1: return {{shape[0]}, Type::f32, Tag::a};
    case 2: return {{shape[0], shape[1]}, Type::f32, Tag::ab};
    default: return {{shape[0], shape[3], shape[1], shape[2]}, Type::f32, Tag::acdb};
  }
}

Parameters::Parameters(const Graph& graph, DataType gradient_type, PrimitiveProgram& program)
    : graph_(graph), gradient_type_(gradient_type), program_(program) {
  entries_.resize(graph.parameters.size());
  for (std::size_t i = 0; i < graph.parameters.size(); ++i) {
    const Parameter& parameter = graph.parameters[i];
    by_value_[parameter.value] = i;
    by_gradient_[parameter.gradient] = i;
    entries_[i].decay = parameter.decay;
    entries_[i].weight = program.new_buffer(parameter.name, 0, Buffer::Storage::kExternal);
    entries_[i].gradient = program.new_buffer(parameter.name + ":gradient", 0, Buffer::Storage::kExternal);
  }
  for (std::size_t id = 0; id < graph.tensors.size(); ++id) {
    const TensorDesc& tensor = graph.tensors[id];
    if (tensor.role != TensorRole::kState) continue;
    const auto bytes = static_cast<std::size_t>(tensor.shape.count()) * sizeof(float);
    states_by_id_[static_cast<TensorId>(id)] = program.new_buffer(tensor.name, bytes, Buffer::Storage::kExternal);
  }
}

Parameters::Entry& Parameters::entry(TensorId value) { return entries_[by_value_.at(value)]; }
const Parameters::Entry& Parameters::entry(TensorId value) const { return entries_[by_value_.at(value)]; }

void Parameters::set_layout(TensorId value, const Md& desc) {
  Entry& parameter = entry(value);
  HVD_ASSERT(parameter.desc.get_size() == 0);
  parameter.desc = desc;
  parameter.weight->bytes = parameter.gradient->bytes = desc.get_size();
}

TensorView Parameters::stored(TensorId value) const { return {entry(value).weight, entry(value).desc}; }

TensorView Parameters::derived(TensorId value, const Md& desc) {
  Entry& parameter = entry(value);
  if (parameter.desc == desc) return {parameter.weight, parameter.desc};
  for (const TensorView& copy : parameter.copies) {
    if (copy.desc == desc) return copy;
  }
  const TensorView copy = program_.new_value(parameter.weight->name + ":copy", desc, Buffer::Storage::kPersistent);
  parameter.copies.push_back(copy);
  if (std::optional<TiledCopy> tiled = TiledCopy::plan(parameter.desc, desc)) {
    BoundOperation operation{
        .node = parameter.weight->name, .kind = "reorder", .implementation = "own", .done_by_update = true};
    operation.kernel = [plan = *tiled, from = parameter.weight, to = copy.buffer](StepInput&) {
      for (std::size_t strip = 0; strip < plan.strips(); ++strip) {
        plan.pack(floats(from), reinterpret_cast<std::uint16_t*>(to->data), strip, 0, plan.tiles());
      }
      TiledCopy::finish();
    };
    program_.append_refresh(std::move(operation));
    parameter.tiled.emplace_back(*std::move(tiled), copy.buffer);
    return copy;
  }
  program_.append_refresh(program_.reorder(parameter.weight->name, {parameter.weight, parameter.desc}, copy));
  return copy;
}

TensorView Parameters::gradient(TensorId gradient, const Md& desc) const {
  return {entries_[by_gradient_.at(gradient)].gradient, desc};
}

std::size_t Parameters::index_of_gradient(TensorId gradient) const { return by_gradient_.at(gradient); }

TensorView Parameters::state(TensorId id) const { return {states_by_id_.at(id), row_major(graph_.tensor(id).shape)}; }

void Parameters::allocate(const ArenaAllocator& allocator) {
  std::size_t offset = 0;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const Parameter& parameter = graph_.parameters[i];
    HVD_ASSERT(entries_[i].desc.get_size() > 0);
    const std::size_t count = slot_count(entries_[i].desc);
    slots_.push_back({.name = parameter.name,
                      .offset = offset,
                      .count = count,
                      .shape = graph_.tensor(parameter.value).shape,
                      .layout = layout_text(entries_[i].desc)});
    offset += align_up(count, kSlotAlign);
  }
  weights_ = HostArena(offset * sizeof(float), "weights");
  momentum_ = HostArena(offset * sizeof(float), "momentum");
  momentum_bytes_ = momentum_.bytes().size();
  gradient_arena_ = allocator(offset * size_of(gradient_type_));
  advise_huge_pages(gradient_arena_);
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    entries_[i].weight->data = weights_.bytes().data() + slots_[i].offset * sizeof(float);
    entries_[i].gradient->data = gradient_arena_.data() + slots_[i].offset * size_of(gradient_type_);
  }
  std::size_t state_bytes = 0;
  for (const auto& [id, buffer] : states_by_id_) state_bytes += buffer->bytes;
  states_ = HostArena(state_bytes, "running statistics");
  std::size_t at = 0;
  for (auto& [id, buffer] : states_by_id_) {
    buffer->data = states_.bytes().data() + at;
    at += buffer->bytes;
  }
}

void Parameters::initialise(std::uint64_t seed) {
  auto* staging = reinterpret_cast<float*>(momentum_.bytes().data());
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const auto count = static_cast<std::size_t>(slots_[i].shape.count());
    float* logical = staging + slots_[i].offset;
    initial_value(graph_.parameters[i], slots_[i].shape, seed, {logical, count});
    write(i, {logical, count});
    std::memset(logical, 0, count * sizeof(float));
  }
  for (const Node& node : graph_.nodes) {
    if (node.kind != OpKind::kBatchNorm) continue;
    const TensorView variance = state(node.inputs[4]);
    auto* data = reinterpret_cast<float*>(variance.buffer->data);
    std::fill_n(data, variance.buffer->bytes / sizeof(float), 1.0F);
  }
}

void Parameters::check_size(std::size_t parameter, std::size_t given) const {
  if (parameter >= slots_.size()) {
    throw Error(Errc::kInvalidArgument, fmt::format("parameter {} of {} does not exist", parameter, slots_.size()));
  }
  const auto wanted = static_cast<std::size_t>(slots_[parameter].shape.count());
  if (given != wanted) {
    throw Error(Errc::kInvalidArgument, fmt::format("{} has {} elements ({}), not {}", slots_[parameter].name, wanted,
                                                    slots_[parameter].shape.text(), given));
  }
}

void Parameters::transfer(std::size_t parameter, float* stored, float* logical, bool to_logical) {
  const dnnl::engine& engine = program_.engine();
  dnnl::memory in_slot(entries_[parameter].desc, engine, stored);
  const Shape& shape = slots_[parameter].shape;
  // The weights of a fully connected layer on images may be stored as a matrix {out, pixels * channels}.
  const Dims dims = dims_of(entries_[parameter].desc);
  const bool flat = dims.size() == 2 && shape.rank() == 4;
  dnnl::memory outside(flat ? Md(dims, Type::f32, Tag::ab) : row_major(shape), engine, logical);
  dnnl::memory& from = to_logical ? in_slot : outside;
  dnnl::memory& to = to_logical ? outside : in_slot;
  dnnl::reorder(from, to).execute(program_.stream(), from, to);
  program_.stream().wait();
}

void Parameters::read(std::size_t parameter, std::span<float> out) {
  check_size(parameter, out.size());
  transfer(parameter, reinterpret_cast<float*>(entries_[parameter].weight->data), out.data(), true);
}

void Parameters::write(std::size_t parameter, std::span<const float> in) {
  check_size(parameter, in.size());
  // The library does not accept a pointer to const, but this reorder only reads `in`.
  transfer(parameter, reinterpret_cast<float*>(entries_[parameter].weight->data), const_cast<float*>(in.data()), false);
}

void Parameters::read_gradient(std::size_t parameter, std::span<float> out) {
  check_size(parameter, out.size());
  std::byte* data = entries_[parameter].gradient->data;
  if (gradient_type_ == DataType::kF32) {
    transfer(parameter, reinterpret_cast<float*>(data), out.data(), true);
    return;
  }
  std::vector<float> widened(slots_[parameter].count);
  to_f32(reinterpret_cast<const std::uint16_t*>(data), widened.data(), widened.size());
  transfer(parameter, widened.data(), out.data(), true);
}

}  // namespace hvd::models::onednn
