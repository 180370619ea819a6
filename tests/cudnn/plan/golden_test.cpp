// Tests two parts of guard_test.cpp: Golden must show where texts differ, and CallLog must distinguish calls.
#include "tests/cudnn/plan/golden.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/gpu/call_log.h"

namespace hvd::models::cudnn::testing::golden_test {
namespace {

std::vector<std::string> lines(int count) {
  std::vector<std::string> list;
  for (int i = 0; i < count; ++i) list.push_back("line " + std::to_string(i + 1));
  return list;
}

class GoldenTest : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::remove_all(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  [[nodiscard]] GoldenOptions options(bool write = false) const {
    return {.file = (folder_ / "digests.txt").string(),
            .first_line = "version 1",
            .texts = (folder_ / (write ? "before" : "now")).string(),
            .before = {},
            .write = write};
  }
  /// Writes a file with a single digest, that of a text of 100 lines.
  void written() const { Golden(options(true)).check("a case", "groups 5 bytes 640", lines(100)); }

  const std::filesystem::path folder_ =
      std::filesystem::path(::testing::TempDir()) / ("hvd_golden." + std::to_string(::getpid()));
};

bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST_F(GoldenTest, EqualTextsDoNotDiffer) {
  written();
  Golden golden(options());
  EXPECT_EQ(golden.unusable(), "");
  EXPECT_EQ(golden.unchecked("a"), std::vector<std::string>{"a case"});
  auto text = lines(100);
  text[7] += std::string(test::kRemark) + "for people";
  EXPECT_EQ(golden.check("a case", "groups 5 bytes 640", text), "");
  EXPECT_EQ(golden.unchecked("a"), std::vector<std::string>());
}

TEST_F(GoldenTest, FiguresAndThePlaceOfTheFirstDifferenceAreNamed) {
  written();
  Golden golden(options());
  auto text = lines(100);
  text[56] = "another line";
  const std::string difference = golden.check("a case", "groups 5 bytes 641", text);
  EXPECT_TRUE(holds(difference, "a case: bytes was 640, is 641; hash was ")) << difference;
  EXPECT_TRUE(holds(difference, "first difference between lines 57 and 62 of ")) << difference;
  EXPECT_TRUE(holds(difference, "another line")) << difference;
}

TEST_F(GoldenTest, TextsThatAreShorterOrLongerDiffer) {
  written();
  Golden golden(options());
  const std::string shorter = golden.check("a case", "groups 5 bytes 640", lines(99));
  EXPECT_TRUE(holds(shorter, "lines was 100, is 99;") && holds(shorter, "between lines 94 and 99 of ")) << shorter;
  const std::string longer = golden.check("a case", "groups 5 bytes 640", lines(101));
  EXPECT_TRUE(holds(longer, "lines was 100, is 101;") && holds(longer, "between lines 94 and 101 of ")) << longer;
  EXPECT_TRUE(holds(golden.check("a case", "groups 5 bytes 640", {}), "lines was 100, is 0;"));
}

TEST_F(GoldenTest, TheVeryLineIsShownWhereTheTextOfBeforeIsThere) {
  written();
  GoldenOptions with = options();
  with.before = (folder_ / "before").string();
  Golden golden(with);
  auto text = lines(100);
  text[56] = "another line";
  const std::string difference = golden.check("a case", "groups 5 bytes 640", text);
  EXPECT_TRUE(holds(difference, "first difference in line 57 of ")) << difference;
  EXPECT_TRUE(holds(difference, "\n  was line 57\n  is  another line")) << difference;
  const std::string figure = golden.check("a case", "groups 6 bytes 640", lines(100));
  EXPECT_TRUE(holds(figure, "a case: groups was 5, is 6;\n  the text is the same: ")) << figure;
}

TEST_F(GoldenTest, UnknownNamesAndOtherVersionsAreSaid) {
  EXPECT_TRUE(holds(Golden(options()).unusable(), "there is no "));
  written();
  EXPECT_TRUE(holds(Golden(options()).check("another case", "", {}), "another case: not in "));
  GoldenOptions other = options();
  other.first_line = "version 2";
  EXPECT_TRUE(holds(Golden(other).unusable(), "was made with \"version 1\", here is \"version 2\""));
}

TEST(CallLog, NamesWhatItSeesInOrder) {
  test::FakeWorld world(1);
  test::FakeRuntime gpu(world, 0, {.memory_bytes = std::size_t{1} << 40, .uuid = {}, .dry = true});
  test::CallLog log(gpu);
  {
    const gpu::DeviceMemory large = gpu.allocate(std::size_t{1} << 38, "much");  // uses only address space, not memory
    const gpu::PinnedMemory host = gpu.allocate_pinned(64, "little");
    const gpu::Stream first = gpu.make_stream(gpu::Priority::kNormal), second = gpu.make_stream(gpu::Priority::kHigh);
    const gpu::Event event = gpu.make_event(gpu::Timing::kOff);
    gpu.fill(large->bytes.data(), std::byte{1}, 128, first);
    gpu.record(event, first);
    gpu.wait(second, event);
    gpu.copy(large->bytes.data() + 256, host->bytes.data(), 64, second);
    log.say("between");
    gpu.synchronize(second.view(), Deadline::after(std::chrono::seconds(10)), "the copy");
    EXPECT_EQ(large->bytes[0], std::byte{0}) << "nothing is moved";
    gpu::Capture capture(gpu, first);
    gpu.record_outside(event, first);
    const gpu::Graph graph = capture.finish();
    gpu.launch(graph, first);
    gpu.synchronize(first.view(), Deadline::after(std::chrono::seconds(10)), "the graph");
  }
  const std::vector<std::string> expected{"allocate: > d0+0:274877906944   # much",
                                          "allocate pinned: > p0+0:64   # little",
                                          "make stream s0",
                                          "make stream of high priority s1",
                                          "make event e0",
                                          "fill s0: > d0+0:128",
                                          "record s0 e0",
                                          "wait s1 e0",
                                          "copy s1: p0+0:64 > d0+256:64",
                                          "between",
                                          "finished s1",
                                          "begin capture s0",
                                          "record outside s0 e0",
                                          "end capture s0 g0",
                                          "launch s0 g0",
                                          "finished s0",
                                          "destroy graph g0",
                                          "destroy event e0",
                                          "destroy stream s1",
                                          "destroy stream s0",
                                          "free: > p0+0:64",
                                          "free: > d0+0:274877906944"};
  EXPECT_EQ(log.lines(), expected);
  EXPECT_EQ(world.violations(), std::vector<std::string>());
}

}  // namespace
}  // namespace hvd::models::cudnn::testing::golden_test
