// Names of the instruction sets that oneDNN reports, for versions 2 and 3 of the library.
#pragma once

#include <string>

namespace hvd::models::onednn {

/// Returns the name of `isa`, a value of dnnl_cpu_isa_t: "avx512_core_amx". For a value that this program does not
/// know, returns the name of the largest known set that `isa` includes, and the remaining bits of `isa`:
/// "avx512_core_amx+0x2000". oneDNN 2 and 3 use different bits; `library_major` is the version that reported `isa`.
/// Source: dnnl_types.h of oneDNN 2.6 and 3.7.
std::string isa_name(unsigned isa, int library_major);

}  // namespace hvd::models::onednn
