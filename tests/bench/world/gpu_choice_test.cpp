// Tests which device a session takes, and the errors for options that no session can have.
#include <gtest/gtest.h>

#include <iterator>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "bench/cli/command_line.h"
#include "bench/cli/launch.h"
#include "bench/cli/preflight.h"
#include "bench/world/setup.h"
#include "tests/base/errors.h"
#include "tests/bench/fake_gpus.h"

namespace hvd::bench::gpu_choice_test {
namespace {

using test::FakeGpus;

void refused(const Options& options, GpuBackend* gpus, const char* part) {
  test::expect_error(Errc::kUnsupported, part, [&] { return settle(options, gpus); });
}

TEST(GpuChoice, AutoTakesAGpu) {
  Options options;
  FakeGpus some(2);
  const bench::Setup on_gpu = settle(options, &some);
  EXPECT_EQ(on_gpu.device_name(), "cuda");
  EXPECT_EQ(on_gpu.model.batch_size, 64);
}

TEST(GpuChoice, AutoTakesTheCpuAndSaysWhy) {
  if (const std::string why = models::onednn_unsupported_reason(DataType::kF32); !why.empty()) GTEST_SKIP() << why;
  Options options;
  FakeGpus none(0);
  const bench::Setup on_cpu = settle(options, &none);
  EXPECT_EQ(on_cpu.device_name(), "cpu");
  EXPECT_EQ(on_cpu.model.batch_size, 8);
  EXPECT_EQ(on_cpu.notes.at(0), "computing on the CPU: no GPU was found");

  FakeGpus some(2);
  some.missing = "cuDNN could not be loaded";
  EXPECT_EQ(settle(options, &some).notes.at(0), "computing on the CPU: cuDNN could not be loaded");
  EXPECT_EQ(settle(options, nullptr).device_name(), "cpu");

  options.device = Device::kCpu;
  FakeGpus others(1);
  EXPECT_EQ(settle(options, &others).device_name(), "cpu");
}

TEST(GpuChoice, CudaWithoutOneIsRefusedInOneLine) {
  Options options;
  options.device = Device::kCuda;
  FakeGpus none(0);
  EXPECT_EQ(test::error_of([&] { return settle(options, &none); }),
            "unsupported: --device cuda: no GPU was found (or compute on the CPU: --device cpu)");
  FakeGpus some(1);
  some.missing = "cuDNN could not be loaded";
  EXPECT_EQ(test::error_of([&] { return settle(options, &some); }),
            "unsupported: --device cuda: cuDNN could not be loaded (or compute on the CPU: --device cpu)");
  options.host_comm = true;
  options.comm = CommBackend::kMpi;
  test::expect_error(Errc::kInvalidArgument, "--comm mpi reduces gradients in host memory",
                     [&] { return settle(options, &some); });
}

/// Returns the Setup of rank 0 if mpirun starts two processes with the command line `words`.
bench::Setup settled(const std::vector<std::string>& words, FakeGpus& gpus) {
  Options options = parse_command_line(words, {}).options;
  check_launch(detect_launch({{"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_RANK", "0"}}), options, true);
  return settle(options, &gpus);
}

TEST(GpuChoice, OnlyATransportOfTheHostKeepsALaunchOffItsGpus) {
  FakeGpus some(2);
  for (const char* comm : {"auto", "none", "nccl"}) {
    EXPECT_EQ(settled({"hvd_bench", "--comm", comm}, some).device_name(), "cuda") << comm;
  }
  EXPECT_EQ(settled({"hvd_bench"}, some).device_name(), "cuda");
  if (const std::string why = models::onednn_unsupported_reason(DataType::kF32); !why.empty()) GTEST_SKIP() << why;
  EXPECT_EQ(settled({"hvd_bench", "--comm", "mpi"}, some).notes.at(0),
            "computing on the CPU: --comm mpi reduces gradients in host memory");
  EXPECT_EQ(settle(parse_command_line({"hvd_bench", "--ranks", "2", "--comm=loopback"}, {}).options, &some).notes.at(0),
            "computing on the CPU: --comm loopback reduces gradients in host memory");
}

TEST(GpuChoice, TheDriversReasonIsPassedOn) {
  gpu::DeviceList list;
  list.reason = gpu::no_device_reason(11040, 13000, "CUDA driver version is insufficient");
  EXPECT_NE(gpu_absence(list).find("CUDA 11.4, but this program needs 13.0"), std::string::npos) << gpu_absence(list);
  EXPECT_TRUE(gpu::no_device_reason(0, 13000, "no CUDA-capable device is detected").starts_with("no NVIDIA driver"));
  EXPECT_EQ(gpu::no_device_reason(12020, 12090, "no CUDA-capable device is detected"),
            "no CUDA-capable device is detected")
      << "a driver of the same major version runs newer programs";
}

TEST(GpuChoice, TypesAndNcclNeedAGpu) {
  Options options;
  FakeGpus none(0);
  options.compute = DataType::kF16;
  refused(options, &none, "--dtype fp16: needs a GPU");
  options.compute = DataType::kF32;
  options.gpu.tf32 = true;
  refused(options, &none, "use --dtype fp32 or, where the processor has it, --dtype bf16");
  options.gpu.tf32 = false;
  options.comm = CommBackend::kNccl;
  refused(options, &none, "--comm nccl: no GPU was found; use --comm mpi or --comm auto");
  options.device = Device::kCpu;
  refused(options, &none, "use --comm mpi");

  FakeGpus some(1);
  options = {};
  options.compute = DataType::kF16;
  EXPECT_EQ(settle(options, &some).compute_name(), "fp16");
}

TEST(GpuChoice, NcclChoosesItsAlgorithm) {
  FakeGpus some(1);
  Options options;
  options.comm_options.algorithm = comm::Algorithm::kHierarchical;
  refused(options, &some, "--algorithm hierarchical: on GPUs NCCL chooses how it reduces, between nodes too; leave ");
  if (const std::string why = models::onednn_unsupported_reason(DataType::kF32); !why.empty()) GTEST_SKIP() << why;
  options.device = Device::kCpu;
  EXPECT_EQ(settle(options, &some).device_name(), "cpu");
}

TEST(GpuChoice, GradientsOfACpuAreRoundedBetweenNodesOnly) {
  if (const std::string why = models::onednn_unsupported_reason(DataType::kF32); !why.empty()) GTEST_SKIP() << why;
  Options options;
  FakeGpus none(0);
  options.allreduce = DataType::kF16;
  const bench::Setup setup = settle(options, &none);
  EXPECT_EQ(setup.wire(), DataType::kF16);
  EXPECT_EQ(setup.gradient, DataType::kF32);
}

TEST(GpuChoice, ShardedIsForHostMemoryInFp32) {
  if (const std::string why = models::onednn_unsupported_reason(DataType::kF32); !why.empty()) GTEST_SKIP() << why;
  FakeGpus some(1);
  Options options;
  options.engine.schedule = Schedule::kSharded;
  refused(options, &some, "this run computes on the GPU");
  options.device = Device::kCpu;
  EXPECT_EQ(settle(options, &some).schedule, Schedule::kSharded);
  options.allreduce = DataType::kBF16;
  refused(options, &some, "leave out --allreduce-dtype bf16");
  options.allreduce.reset();
  options.record_replay_file = "profile";
  refused(options, &some, "--record-replay");
}

struct Refusal {
  const char* arguments;
  std::vector<std::string_view> texts;
  Errc code = Errc::kInvalidArgument;
};

TEST(Refusals, SayWhatIsWrongAndWhatWouldBeRight) {
  if (const std::string why = models::onednn_unsupported_reason(DataType::kF32); !why.empty()) GTEST_SKIP() << why;
  for (const auto& [arguments, texts, code] : std::vector<Refusal>{
           {"--model resnet102", {"'resnet102'", "inception3, resnet50, resnet101, vgg16", "did you mean"}},
           {"--model inception3 --image-size 40", {"40", "75"}},
           {"--model vgg16 --image-size 8", {"8", "32"}},
           {"--device cuda", {"--device cuda: ", "--device cpu"}, Errc::kUnsupported},
           {"--fit", {"--fit", "give --efficiency"}},
           {"--efficiency --fit --num-iters 3", {"--fit", "--num-iters"}},
           {"--replay none.txt", {"none.txt: cannot read the replay file: No such file"}, Errc::kIo},
       }) {
    std::istringstream words(std::string("hvd_bench ") + arguments);
    const std::vector<std::string> argv{std::istream_iterator<std::string>(words), {}};
    const std::string error = test::error_of([&argv] { return check_model(parse_command_line(argv, {}).options); });
    EXPECT_TRUE(error.starts_with(name(code))) << arguments << ": " << error;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
    for (const std::string_view text : texts) test::expect_contains(error, text);
  }
}

}  // namespace
}  // namespace hvd::bench::gpu_choice_test
