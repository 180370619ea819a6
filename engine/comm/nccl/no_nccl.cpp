#include "engine/base/error.h"
#include "engine/comm/nccl/api.h"

namespace hvd::comm::nccl {

std::unique_ptr<Api> load(const gpu::LibrarySearch& /*search*/) {
  throw Error(Errc::kUnsupported,
              "this build has no NCCL: configure with HVD_WITH_NCCL=ON where CUDA and nccl.h are (HVD_NCCL_ROOT)");
}

}  // namespace hvd::comm::nccl
