// Names of the instruction sets that oneDNN reports, whatever version made the number.
#pragma once

#include <string>

namespace hvd::models::onednn {

/// The name of `isa`, a value of dnnl_cpu_isa_t: "avx512_core_amx". A value that is newer than this program is named
/// after the largest known set within it and the bits beyond: "avx512_core_amx+0x2000". The bits of versions 2 and 3
/// differ, so `library_major` says whose they are.
/// Source: dnnl_types.h of oneDNN 2.6 and 3.7.
std::string isa_name(unsigned isa, int library_major);

}  // namespace hvd::models::onednn
