// Compares the memory report with what the operating system measures. The peak memory of a process cannot be reset.
// This test is therefore a program of its own, in which nothing else runs before the test.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdint>
#include <iostream>
#include <vector>

#include "models/graph/autodiff.h"
#include "models/random.h"
#include "models/train_step.h"
#include "models/zoo/zoo.h"
#include "tests/models/testing.h"

namespace hvd::models::memory_test {
namespace {

std::size_t peak_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::size_t>(usage.ru_maxrss) * 1024;  // Linux reports the peak in KiB
}

TEST(OnednnMemory, PeakIsAtMostATenthAboveTheReport) {
  const ModelSpec spec{
      .model = "resnet50", .batch_size = 4, .image_size = 224, .classes = 1000, .auxiliary_head = false};
  Graph graph = differentiate(build_model(spec));
  std::vector<float> images(4 * 224 * 224 * 3);
  std::vector<std::int32_t> labels(4);
  synthetic_batch({.seed = 1, .image_elements = 224 * 224 * 3, .classes = 1000}, 0, images, labels);
  const HeapArena arena = make_heap_arena();
  const std::size_t before = peak_bytes();
  const auto step = make_onednn_step(std::move(graph), {}, arena.allocate);
  testing::RecordingSink sink;
  for (std::uint64_t i = 0; i < 2; ++i) {
    (void)step->forward_backward({.images = images, .labels = labels, .first_sample = 0, .step = i}, sink);
    step->update({});
  }
  const auto grown = static_cast<double>(peak_bytes() - before);
  const auto planned = static_cast<double>(step->memory().total());
  std::cout << "planned " << planned / 1048576 << " MiB, peak grew by " << grown / 1048576 << " MiB\n";
  EXPECT_LE(grown, 1.1 * planned);
  EXPECT_GE(grown, 0.8 * planned) << "the report counts memory that is never used";
}

}  // namespace
}  // namespace hvd::models::memory_test
