// Options of a short session on fake GPUs, with `ranks` threads of one process.
#pragma once

#include "bench/train/options.h"

namespace hvd::test {

inline bench::Options gpu_options(int ranks) {
  bench::Options options;
  options.model = "resnet50";
  options.device = bench::Device::kCuda;
  options.image_size = 32;
  options.batch_size = 2;
  options.ranks = ranks > 1 ? ranks : 0;
  options.comm = ranks > 1 ? bench::CommBackend::kLoopback : bench::CommBackend::kAuto;
  options.num_warmup_batches = 4;
  options.num_iters = 6;
  options.engine.buckets = {.bucket_bytes = 1024, .first_bucket_bytes = 256};
  options.engine.deadline = std::chrono::seconds(20);
  return options;
}

}  // namespace hvd::test
