// Tests the errors if a step cannot be made: too little memory, unusable libraries, types that the GPU does not
// support.
#include <gtest/gtest.h>

#include <filesystem>

#include "models/cudnn/run/step_memory.h"
#include "tests/cudnn/lowering/networks.h"
#include "tests/cudnn/lowering/oracles.h"
#include "tests/cudnn/run/machine.h"
#include "tests/gpu/plain_library.h"

namespace hvd::models::cudnn::testing::refusal_test {
namespace {

TEST(Executor, SaysHowMuchIsNeededAndWhichBatchFits) {
  ServesAll oracle;
  // Only 4 of the 36 MiB are left, because cuBLASLt's workspace takes 32 MiB.
  const Wish wish{.forward = tiny_resnet(512, 32), .device_bytes = std::size_t{36} << 20};
  models::testing::expect_error(
      Errc::kOutOfMemory,
      {"GPU 0 (fake): batch 512 needs ", " MiB of device memory, 36 MiB are free; batch ", " fits (--batch-size)"},
      [&] { const Machine machine(wish, oracle); });
}

TEST(StepMemory, CountsWhatGrowsWithTheBatch) {
  const MemoryNeed need{.fixed = 100 << 20, .per_image = 10 << 20, .batch = 64};
  EXPECT_EQ(too_big_text(need, 500 << 20),
            "batch 64 needs 740 MiB of device memory, 500 MiB are free; batch 40 fits (--batch-size)");
  EXPECT_EQ(too_big_text(need, 105 << 20),
            "batch 64 needs 740 MiB of device memory, 105 MiB are free; not even batch 1 fits: is something else using "
            "this GPU?");
}

TEST(Libraries, ThatAreMissingOrWrongAreNamed) {
  gpu::LibrarySearch search;
  search.cudnn_root = search.cublas_root = "/nowhere";
  models::testing::expect_error(Errc::kUnsupported,
                                {"cuDNN could not be loaded (there is no /nowhere/lib/libcudnn.so.9, ",
                                 ", /nowhere/libcudnn.so): install cuDNN", "LD_LIBRARY_PATH or HVD_CUDNN_ROOT"},
                                [&] { static_cast<void>(Library::load(search)); });
  models::testing::expect_error(Errc::kUnsupported,
                                {"cuBLASLt could not be loaded (there is no /nowhere/lib/libcublasLt.so.",
                                 "): install the CUDA", "LD_LIBRARY_PATH or HVD_CUBLAS_ROOT"},
                                [&] { static_cast<void>(CublasLt::load(search)); });
  const std::filesystem::path wrong = std::filesystem::path(::testing::TempDir()) / "not_cuda";
  std::filesystem::remove_all(wrong);
  for (const char* const file : {"libcudnn.so", "libcublasLt.so"}) test::put_library(wrong / file);
  search.cudnn_root = search.cublas_root = wrong;
  models::testing::expect_error(Errc::kUnsupported,
                                {"not_cuda/libcudnn.so lacks the backend API of cuDNN 8.9 or 9: install"},
                                [&] { static_cast<void>(Library::load(search)); });
  models::testing::expect_error(Errc::kUnsupported, {"not_cuda/libcublasLt.so lacks functions of cuBLASLt"},
                                [&] { static_cast<void>(CublasLt::load(search)); });
}

TEST(TypeRefusal, NamesWhatTheGpuLacks) {
  gpu::Device v100, h200;
  v100.name = "V100";
  v100.compute_major = 7;
  h200.name = "H200";
  h200.compute_major = 9;
  EXPECT_EQ(type_refusal(h200, ComputeType::kBf16, 80), "");
  EXPECT_EQ(type_refusal(v100, ComputeType::kFp16, 70), "");
  EXPECT_EQ(type_refusal(v100, ComputeType::kBf16, 70),
            "V100 has compute capability 7.0; bf16 needs 8.0: use --dtype fp16 or fp32");
  EXPECT_EQ(
      type_refusal(v100, ComputeType::kFp16, 80),
      "V100 has compute capability 7.0, and this build has kernels from 8.0 on: configure it with a CUDA Toolkit 12 "
      "and -DCMAKE_CUDA_ARCHITECTURES=70");
  gpu::Device p100, t4;
  p100.name = "P100";
  p100.compute_major = 6;
  t4.name = "T4";
  t4.compute_major = 7;
  t4.compute_minor = 5;
  EXPECT_EQ(type_refusal(p100, ComputeType::kFp32, 60), "");
  EXPECT_EQ(type_refusal(p100, ComputeType::kTf32, 60),
            "P100 has compute capability 6.0; tf32 needs 8.0: use --dtype fp16 or fp32");
  EXPECT_EQ(type_refusal(t4, ComputeType::kFp16, 80),
            "T4 has compute capability 7.5, and this build has kernels from 8.0 on: configure it with "
            "-DCMAKE_CUDA_ARCHITECTURES=75");
}

}  // namespace
}  // namespace hvd::models::cudnn::testing::refusal_test
