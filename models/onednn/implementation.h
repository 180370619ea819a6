// Asks oneDNN for an operation in several layouts, until the library has compiled code for it.
//
// oneDNN has an implementation of every operation that takes any layout: its reference code, which is correct and up to
// 1,000 times slower than compiled code. oneDNN offers the reference code without a word where no other implementation
// takes the layouts it was asked for. With 2.6 and AVX2 this happened to weight gradients of 3x3 convolutions over
// images of 2x2 pixels in the forward pass's blocked layouts: eight operations took 7.4 of the 7.7 s of a step.
#pragma once

#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/onednn/compat.h"

namespace hvd::models::onednn {

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
