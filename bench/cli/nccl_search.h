// Where NCCL may lie on this machine, from the environment.
#pragma once

#include "bench/cli/environment.h"
#include "engine/comm/nccl/api.h"

namespace hvd::bench {

/// HVD_NCCL_ROOT, or else the site-packages of the active Python environment (VIRTUAL_ENV, CONDA_PREFIX) and the
/// folders of PYTHONPATH, where the wheels that come with PyTorch put it.
comm::nccl::Search nccl_search(const Environment& environment);

}  // namespace hvd::bench
