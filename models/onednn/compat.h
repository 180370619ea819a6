// What this program knows about versions of oneDNN: their interfaces, their names of instruction sets, and how to avoid
// their reference code.
//
// Hides the difference between oneDNN's two C++ interfaces: 2.x builds a primitive descriptor from an operation
// descriptor, 3.x from the arguments themselves. The functions throw dnnl::error, which onednn_step.cpp turns into
// Error{kBackend}. Any thread may call them: they share no state.
//
// oneDNN has an implementation of every operation that takes any layout: its reference code, which is correct and up to
// 1,000 times slower than compiled code. oneDNN offers the reference code without a word where no other implementation
// takes the layouts it was asked for. With 2.6 and AVX2 this happened to weight gradients of 3x3 convolutions over
// images of 2x2 pixels in the forward pass's blocked layouts: eight operations took 7.4 of the 7.7 s of a step. So
// first_compiled() asks for an operation in several layouts, until the library has compiled code for it.
#pragma once

#include <cstdint>
#include <exception>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hvd::models::onednn {

using Md = dnnl::memory::desc;
using Dims = dnnl::memory::dims;
using Type = dnnl::memory::data_type;
using Tag = dnnl::memory::format_tag;

/// Geometry of a convolution or a pooling, in the library's form. Each member has the dimensions {h, w}.
struct Geometry {
  Dims kernel, strides, pad_low, pad_high;
};

/// Descriptors of the tensors of a convolution or a fully connected layer; `bias` is null if the layer has no bias. In
/// a backward pass, `dst` describes the input diff_dst. `src` then describes the result diff_src, or `weights` and
/// `bias` describe the results diff_weights and diff_bias.
struct Operands {
  Md src, weights;
  const Md* bias = nullptr;
  Md dst;
};

using ConvForward = dnnl::convolution_forward::primitive_desc;
using ConvBackwardData = dnnl::convolution_backward_data::primitive_desc;
using ConvBackwardWeights = dnnl::convolution_backward_weights::primitive_desc;
using LinearForward = dnnl::inner_product_forward::primitive_desc;
using LinearBackwardData = dnnl::inner_product_backward_data::primitive_desc;
using LinearBackwardWeights = dnnl::inner_product_backward_weights::primitive_desc;
using NormForward = dnnl::batch_normalization_forward::primitive_desc;
using NormBackward = dnnl::batch_normalization_backward::primitive_desc;
using MatmulDesc = dnnl::matmul::primitive_desc;
using PoolForward = dnnl::pooling_forward::primitive_desc;
using PoolBackward = dnnl::pooling_backward::primitive_desc;
using ReluBackward = dnnl::eltwise_backward::primitive_desc;

ConvForward conv_forward(const dnnl::engine& engine, dnnl::algorithm algorithm, const Operands& operands,
                         const Geometry& geometry, const dnnl::primitive_attr& attr);
ConvBackwardData conv_backward_data(const dnnl::engine& engine, dnnl::algorithm algorithm, const Operands& operands,
                                    const Geometry& geometry, const dnnl::primitive_attr& attr,
                                    const ConvForward& hint);
ConvBackwardWeights conv_backward_weights(const dnnl::engine& engine, dnnl::algorithm algorithm,
                                          const Operands& operands, const Geometry& geometry,
                                          const dnnl::primitive_attr& attr, const ConvForward& hint);

LinearForward linear_forward(const dnnl::engine& engine, const Operands& operands, const dnnl::primitive_attr& attr);
LinearBackwardData linear_backward_data(const dnnl::engine& engine, const Operands& operands,
                                        const dnnl::primitive_attr& attr, const LinearForward& hint);
LinearBackwardWeights linear_backward_weights(const dnnl::engine& engine, const Operands& operands,
                                              const dnnl::primitive_attr& attr, const LinearForward& hint);

/// Describes a batch normalisation in training mode, with scale and shift. `fuse_relu` adds a ReLU after the
/// normalisation, and a workspace for the backward pass.
NormForward norm_forward(const dnnl::engine& engine, const Md& data, float epsilon, bool fuse_relu,
                         const dnnl::primitive_attr& attr);
NormBackward norm_backward(const dnnl::engine& engine, const Md& diff, const Md& data, float epsilon, bool fuse_relu,
                           const dnnl::primitive_attr& attr, const NormForward& hint);

/// Returns true for oneDNN 2.x, where the backward pass needs the shift as an input. oneDNN 3.x refuses this input.
bool norm_backward_reads_shift() noexcept;

/// Describes the matrix product c = a * b.
MatmulDesc matmul(const dnnl::engine& engine, const Md& a, const Md& b, const Md& c, const dnnl::primitive_attr& attr);

PoolForward pool_forward(const dnnl::engine& engine, dnnl::algorithm algorithm, const Md& src, const Md& dst,
                         const Geometry& geometry, const dnnl::primitive_attr& attr);
PoolBackward pool_backward(const dnnl::engine& engine, dnnl::algorithm algorithm, const Md& diff_src,
                           const Md& diff_dst, const Geometry& geometry, const dnnl::primitive_attr& attr,
                           const PoolForward& hint);

/// Describes the backward pass of a ReLU: the new diff is the incoming diff where the ReLU's result is positive, else
/// 0. The ReLU's result and both diffs have the layout `data`. Both diffs may be the same tensor.
ReluBackward relu_backward(const dnnl::engine& engine, const Md& data, const dnnl::primitive_attr& attr);

/// Appends max(x, 0) to `attr`'s post-operations.
void append_relu(dnnl::primitive_attr& attr);

/// Returns the layout of `desc` with elements of `type`. Errors: Error{kUnsupported} for a layout without a name (3.x).
Md with_type(const Md& desc, Type type);
/// Returns the name of the layout of an activation {n, c, h, w}, if it is one of the plain or blocked layouts that our
/// concatenation and pools support; else `undef`.
Tag activation_tag(const Md& desc, Type type);
Dims dims_of(const Md& desc);

/// A blocked layout. For each axis, `strides` has the distance between blocks (in elements) and `padded` the padded
/// size. A block has inner_blocks[k] elements on axis inner_axes[k]. Along the last inner axis, elements are adjacent.
struct Blocking {
  Type type;
  Dims strides, padded, inner_blocks, inner_axes;
};
/// Returns the blocked layout `desc`; nullopt if `desc` is not a blocked layout.
std::optional<Blocking> blocking_of(const Md& desc);

/// The processor's fastest unit that multiplies numbers in bf16.
enum class Bf16Units : std::uint8_t {
  kNone,
  kVectors,  ///< AVX-512 BF16
  kTiles,    ///< AMX
};
/// Returns the unit of a processor with instruction sets `isa`. Pure.
Bf16Units bf16_units(dnnl::cpu_isa isa) noexcept;

/// Returns the order of the elements in memory in the notation of format tags, "Acdb16a": slowest axis first, blocked
/// axes in capitals, then the blocks. Axes with one element or one block are omitted. If `desc` is not a blocked
/// layout, returns "opaque, 64 bytes".
std::string layout_text(const Md& desc);

/// Returns the version of the loaded library, e.g. "2.6.3".
std::string library_version();
/// Returns the best instruction set that the library uses on this processor, e.g. "avx512_core_amx".
std::string library_isa();

enum class Architecture : std::uint8_t { kX86, kArm };
#if defined(__aarch64__)
inline constexpr Architecture kThisArchitecture = Architecture::kArm;
#else
inline constexpr Architecture kThisArchitecture = Architecture::kX86;
#endif

/// Returns the name of `isa`, a value of dnnl_cpu_isa_t: "avx512_core_amx", "sve_256". For a value that this program
/// does not know, returns the name of the largest known set that `isa` includes, and the remaining bits of `isa`:
/// "avx512_core_amx+0x2000". oneDNN 2 and 3 use different bits on x86; `library_major` is the version that reported
/// `isa`. On Arm the same values have other meanings. Pure.
/// Source: dnnl_types.h of oneDNN 2.6 and 3.7; for Arm src/cpu/aarch64/cpu_isa_traits.hpp.
std::string isa_name(unsigned isa, int library_major, Architecture architecture = kThisArchitecture);

struct Version {
  int major = 0, minor = 0;
};
/// Returns the reason why a library of this version is slow on a processor with `isa`, where a newer version is faster;
/// empty if no such reason is known. Pure. Source: the symbols of Debian's arm64 packages (docs/onednn.md).
std::string version_reason(unsigned isa, Version library, Architecture architecture = kThisArchitecture);

/// Returns true if `name`, the library's description of an implementation ("ref:any"), is that of reference code.
inline bool is_reference(std::string_view name) noexcept { return name.find("ref") != std::string_view::npos; }

/// Calls describe(request) for one of `requests` after another, until nothing that it describes is reference code.
/// Returns what was described; if all have reference code, what was described first. A result of describe() is a
/// primitive descriptor, or a struct of several with the function is_reference(). The order of the requests alone
/// decides, never a time, so that all ranks with equal processors choose alike.
/// Errors: the first request's dnnl::error if the library implements none; at once any error but dnnl_unimplemented.
template <class Request, class Describe>
auto first_compiled(const std::vector<Request>& requests, const Describe& describe) {
  using Described = decltype(describe(requests.front()));
  std::optional<Described> reference;
  std::exception_ptr refusal;
  for (const Request& request : requests) {
    try {
      Described described = describe(request);
      bool slow = false;
      if constexpr (requires { described.is_reference(); }) {
        slow = described.is_reference();
      } else {
        slow = is_reference(described.impl_info_str());
      }
      if (!slow) return described;
      if (!reference) reference = described;
    } catch (const dnnl::error& error) {
      if (error.status != dnnl_unimplemented) throw;
      if (!refusal) refusal = std::current_exception();
    }
  }
  if (!reference) std::rethrow_exception(refusal);
  return *reference;
}

class PrimitiveProgram;

/// Returns one line that names the first operation of `program` that is reference code, says how many there are, and
/// what to do; empty if there is none. The operations that refresh copies of weights count too.
std::string reference_code_text(const PrimitiveProgram& program);

}  // namespace hvd::models::onednn
