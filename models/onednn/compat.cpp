#include "models/onednn/compat.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/error.h"

namespace hvd::models::onednn {
namespace {

struct Isa {
  unsigned bits;
  std::string_view name;
};
// Each list is in ascending order. An instruction set's bits include the bits of the sets that it extends.
constexpr std::array kVersion2{Isa{0x1, "sse41"},
                               Isa{0x3, "avx"},
                               Isa{0x7, "avx2"},
                               Isa{0xf, "avx512_mic"},
                               Isa{0x27, "avx512_core"},
                               Isa{0x67, "avx512_core_vnni"},
                               Isa{0xe7, "avx512_core_bf16"},
                               Isa{0x3e7, "avx512_core_amx"},
                               Isa{0x407, "avx2_vnni"}};
constexpr std::array kVersion3{Isa{0x1, "sse41"},
                               Isa{0x3, "avx"},
                               Isa{0x7, "avx2"},
                               Isa{0xf, "avx2_vnni"},
                               Isa{0x1f, "avx2_vnni_2"},
                               Isa{0x27, "avx512_core"},
                               Isa{0x67, "avx512_core_vnni"},
                               Isa{0xe7, "avx512_core_bf16"},
                               Isa{0x1ef, "avx512_core_fp16"},
                               Isa{0xfef, "avx512_core_amx"},
                               Isa{0x1fef, "avx512_core_amx_fp16"}};
// oneDNN 2.6.3 reports 0x1f for SVE of 512 bits. Newer sources say 0x27.
constexpr std::array kArm{Isa{0x1, "asimd"},   Isa{0x3, "sve_128"},  Isa{0x7, "sve_256"},
                          Isa{0xf, "sve_384"}, Isa{0x1f, "sve_512"}, Isa{0x27, "sve_512"}};

std::span<const Isa> known_sets(int library_major, Architecture architecture) {
  if (architecture == Architecture::kArm) return kArm;
  return library_major < 3 ? std::span<const Isa>(kVersion2) : std::span<const Isa>(kVersion3);
}

using Kind = dnnl::prop_kind;

// With this algorithm, backward reads the ReLU's result, not its input. Other readers need the result in any case.
constexpr auto kRelu = dnnl::algorithm::eltwise_relu_use_dst_for_bwd;

dnnl::normalization_flags norm_flags(bool fuse_relu) {
  const auto flags = dnnl::normalization_flags::use_scale | dnnl::normalization_flags::use_shift;
  return fuse_relu ? flags | dnnl::normalization_flags::fuse_norm_relu : flags;
}

}  // namespace

std::string isa_name(unsigned isa, int library_major, Architecture architecture) {
  const std::span<const Isa> known = known_sets(library_major, architecture);
  Isa best{0, "isa"};
  for (const Isa& candidate : known) {
    if ((isa & candidate.bits) == candidate.bits) best = candidate;
  }
  if (best.bits == isa && isa != 0) return std::string(best.name);
  return fmt::format("{}+{:#x}", best.name, isa & ~best.bits);
}

std::string version_reason(unsigned isa, Version library, Architecture architecture) {
  if (architecture != Architecture::kArm) return {};
  const std::string name = isa_name(isa, library.major, architecture);
  if (name == "sve_512") return {};
  if (library.major < 3) {
    return fmt::format("oneDNN 2 compiles convolutions on Arm for SVE of 512 bits only, and uses {} here", name);
  }
  constexpr int kLastWithout128Bits = 7;  // 3.7.2; later versions up to 3.11 were not looked at
  if (library.major > 3 || library.minor > kLastWithout128Bits || name == "sve_256") return {};
  return fmt::format("oneDNN 3.{} compiles convolutions on Arm for SVE of 256 and 512 bits only, and uses {} here",
                     library.minor, name);
}

// The code that differs between oneDNN 3.x and 2.x. describe() and describe_backward() make a primitive descriptor.
// Their arguments are those that the interfaces of both versions take, in the same order.

#if DNNL_VERSION_MAJOR >= 3

namespace {

template <class Primitive, class... Arguments>
auto describe(const dnnl::engine& engine, const dnnl::primitive_attr& attr, const Arguments&... arguments) {
  return typename Primitive::primitive_desc(engine, arguments..., attr);
}

template <class Primitive, class Hint, class... Arguments>
auto describe_backward(const dnnl::engine& engine, const dnnl::primitive_attr& attr, const Hint& hint,
                       const Arguments&... arguments) {
  return typename Primitive::primitive_desc(engine, arguments..., hint, attr);
}

}  // namespace

NormForward norm_forward(const dnnl::engine& engine, const Md& data, float epsilon, bool fuse_relu,
                         const dnnl::primitive_attr& attr) {
  return {engine, Kind::forward_training, data, data, epsilon, norm_flags(fuse_relu), attr};
}

NormBackward norm_backward(const dnnl::engine& engine, const Md& diff, const Md& data, float epsilon, bool fuse_relu,
                           const dnnl::primitive_attr& attr, const NormForward& hint) {
  return {engine, Kind::backward, diff, diff, data, epsilon, norm_flags(fuse_relu), hint, attr};
}

bool norm_backward_reads_shift() noexcept { return false; }

PoolForward pool_forward(const dnnl::engine& engine, dnnl::algorithm algorithm, const Md& src, const Md& dst,
                         const Geometry& geometry, const dnnl::primitive_attr& attr) {
  const Dims no_dilation{0, 0};
  return describe<dnnl::pooling_forward>(engine, attr, Kind::forward_training, algorithm, src, dst, geometry.strides,
                                         geometry.kernel, no_dilation, geometry.pad_low, geometry.pad_high);
}

PoolBackward pool_backward(const dnnl::engine& engine, dnnl::algorithm algorithm, const Md& diff_src,
                           const Md& diff_dst, const Geometry& geometry, const dnnl::primitive_attr& attr,
                           const PoolForward& hint) {
  const Dims no_dilation{0, 0};
  return describe_backward<dnnl::pooling_backward>(engine, attr, hint, algorithm, diff_src, diff_dst, geometry.strides,
                                                   geometry.kernel, no_dilation, geometry.pad_low, geometry.pad_high);
}

ReluBackward relu_backward(const dnnl::engine& engine, const Md& data, const dnnl::primitive_attr& attr) {
  const auto forward =
      describe<dnnl::eltwise_forward>(engine, attr, Kind::forward_training, kRelu, data, data, 0.0F, 0.0F);
  return describe_backward<dnnl::eltwise_backward>(engine, attr, forward, kRelu, data, data, data, 0.0F, 0.0F);
}

void append_relu(dnnl::primitive_attr& attr) {
  dnnl::post_ops ops;
  ops.append_eltwise(dnnl::algorithm::eltwise_relu, 0.0F, 0.0F);
  attr.set_post_ops(ops);
}

Md with_type(const Md& desc, Type type) {
  const Dims dims = desc.get_dims();
  for (int i = static_cast<int>(dnnl_a); i < static_cast<int>(dnnl_format_tag_last); ++i) {
    const auto tag = static_cast<Tag>(i);
    const Md candidate(dims, desc.get_data_type(), tag, true);
    if (candidate && candidate == desc) return {dims, type, tag};
  }
  throw Error(Errc::kUnsupported, "oneDNN chose a weight layout that has no format tag; use another oneDNN version");
}

Dims dims_of(const Md& desc) { return desc.get_dims(); }

std::optional<Blocking> blocking_of(const Md& desc) {
  if (desc.get_format_kind() != dnnl::memory::format_kind::blocked) return std::nullopt;
  return Blocking{.type = desc.get_data_type(),
                  .strides = desc.get_strides(),
                  .padded = desc.get_padded_dims(),
                  .inner_blocks = desc.get_inner_blks(),
                  .inner_axes = desc.get_inner_idxs()};
}

#else  // 2.x

namespace {

template <class Primitive, class... Arguments>
auto describe(const dnnl::engine& engine, const dnnl::primitive_attr& attr, const Arguments&... arguments) {
  return typename Primitive::primitive_desc(typename Primitive::desc(arguments...), attr, engine);
}

template <class Primitive, class Hint, class... Arguments>
auto describe_backward(const dnnl::engine& engine, const dnnl::primitive_attr& attr, const Hint& hint,
                       const Arguments&... arguments) {
  return typename Primitive::primitive_desc(typename Primitive::desc(arguments...), attr, engine, hint);
}

}  // namespace

NormForward norm_forward(const dnnl::engine& engine, const Md& data, float epsilon, bool fuse_relu,
                         const dnnl::primitive_attr& attr) {
  return describe<dnnl::batch_normalization_forward>(engine, attr, Kind::forward_training, data, epsilon,
                                                     norm_flags(fuse_relu));
}

NormBackward norm_backward(const dnnl::engine& engine, const Md& diff, const Md& data, float epsilon, bool fuse_relu,
                           const dnnl::primitive_attr& attr, const NormForward& hint) {
  return describe_backward<dnnl::batch_normalization_backward>(engine, attr, hint, Kind::backward, diff, data, epsilon,
                                                               norm_flags(fuse_relu));
}

bool norm_backward_reads_shift() noexcept { return true; }

PoolForward pool_forward(const dnnl::engine& engine, dnnl::algorithm algorithm, const Md& src, const Md& dst,
                         const Geometry& geometry, const dnnl::primitive_attr& attr) {
  return describe<dnnl::pooling_forward>(engine, attr, Kind::forward_training, algorithm, src, dst, geometry.strides,
                                         geometry.kernel, geometry.pad_low, geometry.pad_high);
}

PoolBackward pool_backward(const dnnl::engine& engine, dnnl::algorithm algorithm, const Md& diff_src,
                           const Md& diff_dst, const Geometry& geometry, const dnnl::primitive_attr& attr,
                           const PoolForward& hint) {
  return describe_backward<dnnl::pooling_backward>(engine, attr, hint, algorithm, diff_src, diff_dst, geometry.strides,
                                                   geometry.kernel, geometry.pad_low, geometry.pad_high);
}

ReluBackward relu_backward(const dnnl::engine& engine, const Md& data, const dnnl::primitive_attr& attr) {
  const auto forward = describe<dnnl::eltwise_forward>(engine, attr, Kind::forward_training, kRelu, data, 0.0F, 0.0F);
  return describe_backward<dnnl::eltwise_backward>(engine, attr, forward, kRelu, data, data, 0.0F, 0.0F);
}

void append_relu(dnnl::primitive_attr& attr) {
  dnnl::post_ops ops;
  ops.append_eltwise(1.0F, dnnl::algorithm::eltwise_relu, 0.0F, 0.0F);
  attr.set_post_ops(ops);
}

Md with_type(const Md& desc, Type type) {
  Md typed = desc;
  typed.data.data_type = dnnl::memory::convert_to_c(type);
  return typed;
}

Dims dims_of(const Md& desc) { return desc.dims(); }

std::optional<Blocking> blocking_of(const Md& desc) {
  if (desc.data.format_kind != dnnl_blocked || desc.data.extra.flags != 0 || desc.data.offset0 != 0) {
    return std::nullopt;
  }
  const dnnl_blocking_desc_t& blocking = desc.data.format_desc.blocking;
  const auto axes = static_cast<std::size_t>(desc.data.ndims);
  const auto inner = static_cast<std::size_t>(blocking.inner_nblks);
  return Blocking{.type = desc.data_type(),
                  .strides = Dims(blocking.strides, blocking.strides + axes),
                  .padded = Dims(desc.data.padded_dims, desc.data.padded_dims + axes),
                  .inner_blocks = Dims(blocking.inner_blks, blocking.inner_blks + inner),
                  .inner_axes = Dims(blocking.inner_idxs, blocking.inner_idxs + inner)};
}

#endif

// The code that is the same for both versions of oneDNN.

ConvForward conv_forward(const dnnl::engine& engine, dnnl::algorithm algorithm, const Operands& operands,
                         const Geometry& geometry, const dnnl::primitive_attr& attr) {
  const auto with = [&](const auto&... bias) {
    return describe<dnnl::convolution_forward>(engine, attr, Kind::forward_training, algorithm, operands.src,
                                               operands.weights, bias..., operands.dst, geometry.strides,
                                               geometry.pad_low, geometry.pad_high);
  };
  return operands.bias != nullptr ? with(*operands.bias) : with();
}

ConvBackwardData conv_backward_data(const dnnl::engine& engine, dnnl::algorithm algorithm, const Operands& operands,
                                    const Geometry& geometry, const dnnl::primitive_attr& attr,
                                    const ConvForward& hint) {
  return describe_backward<dnnl::convolution_backward_data>(engine, attr, hint, algorithm, operands.src,
                                                            operands.weights, operands.dst, geometry.strides,
                                                            geometry.pad_low, geometry.pad_high);
}

ConvBackwardWeights conv_backward_weights(const dnnl::engine& engine, dnnl::algorithm algorithm,
                                          const Operands& operands, const Geometry& geometry,
                                          const dnnl::primitive_attr& attr, const ConvForward& hint) {
  const auto with = [&](const auto&... bias) {
    return describe_backward<dnnl::convolution_backward_weights>(engine, attr, hint, algorithm, operands.src,
                                                                 operands.weights, bias..., operands.dst,
                                                                 geometry.strides, geometry.pad_low, geometry.pad_high);
  };
  return operands.bias != nullptr ? with(*operands.bias) : with();
}

LinearForward linear_forward(const dnnl::engine& engine, const Operands& operands, const dnnl::primitive_attr& attr) {
  return describe<dnnl::inner_product_forward>(engine, attr, Kind::forward_training, operands.src, operands.weights,
                                               *operands.bias, operands.dst);
}

LinearBackwardData linear_backward_data(const dnnl::engine& engine, const Operands& operands,
                                        const dnnl::primitive_attr& attr, const LinearForward& hint) {
  return describe_backward<dnnl::inner_product_backward_data>(engine, attr, hint, operands.src, operands.weights,
                                                              operands.dst);
}

LinearBackwardWeights linear_backward_weights(const dnnl::engine& engine, const Operands& operands,
                                              const dnnl::primitive_attr& attr, const LinearForward& hint) {
  return describe_backward<dnnl::inner_product_backward_weights>(engine, attr, hint, operands.src, operands.weights,
                                                                 *operands.bias, operands.dst);
}

MatmulDesc matmul(const dnnl::engine& engine, const Md& a, const Md& b, const Md& c, const dnnl::primitive_attr& attr) {
  return describe<dnnl::matmul>(engine, attr, a, b, c);
}

Tag activation_tag(const Md& desc, Type type) {
  const Dims dims = dims_of(desc);
  if (dims.size() == 2) return Md(dims, type, Tag::nc) == desc ? Tag::nc : Tag::undef;
  for (const auto& [tag, block] : {std::pair{Tag::nhwc, 1}, {Tag::nChw16c, 16}, {Tag::nChw8c, 8}, {Tag::nchw, 1}}) {
    if (dims[1] % block == 0 && Md(dims, type, tag) == desc) return tag;
  }
  return Tag::undef;
}

Bf16Units bf16_units(dnnl::cpu_isa isa) noexcept {
  const auto has = [isa](dnnl::cpu_isa wanted) {  // an instruction set is a bit mask of the sets that it includes
    return (static_cast<unsigned>(isa) & static_cast<unsigned>(wanted)) == static_cast<unsigned>(wanted);
  };
  if (has(dnnl::cpu_isa::avx512_core_amx)) return Bf16Units::kTiles;
  return has(dnnl::cpu_isa::avx512_core_bf16) ? Bf16Units::kVectors : Bf16Units::kNone;
}

std::string layout_text(const Md& desc) {
  const std::optional<Blocking> blocking = blocking_of(desc);
  if (!blocking) return fmt::format("opaque, {} bytes", desc.get_size());
  struct Axis {
    std::size_t index;
    dnnl::memory::dim stride;
    bool blocked;
  };
  std::vector<Axis> axes;
  for (std::size_t i = 0; i < blocking->strides.size(); ++i) {
    dnnl::memory::dim block = 1;
    for (std::size_t k = 0; k < blocking->inner_axes.size(); ++k) {
      if (blocking->inner_axes[k] == static_cast<dnnl::memory::dim>(i)) block *= blocking->inner_blocks[k];
    }
    if (blocking->padded[i] > block) axes.push_back({i, blocking->strides[i], block > 1});
  }
  std::stable_sort(axes.begin(), axes.end(), [](const Axis& a, const Axis& b) { return a.stride > b.stride; });
  std::string text;
  for (const Axis& axis : axes) text += static_cast<char>((axis.blocked ? 'A' : 'a') + static_cast<char>(axis.index));
  for (std::size_t k = 0; k < blocking->inner_axes.size(); ++k) {
    text += std::to_string(blocking->inner_blocks[k]) + static_cast<char>('a' + blocking->inner_axes[k]);
  }
  return text;
}

std::string library_version() {
  const dnnl_version_t* version = dnnl_version();
  return fmt::format("{}.{}.{}", version->major, version->minor, version->patch);
}

std::string library_isa() {
  return isa_name(static_cast<unsigned>(dnnl::get_effective_cpu_isa()), dnnl_version()->major);
}

}  // namespace hvd::models::onednn
