// Tests the parts of the engine that need no peers: marks, tickets, queue, fusion layout, roll call, file names.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "engine/base/error.h"
#include "engine/runtime/fusion_buffer.h"
#include "engine/runtime/negotiated_schedule.h"
#include "engine/runtime/ready_marks.h"
#include "engine/runtime/roll_call.h"
#include "engine/runtime/trace.h"
#include "engine/runtime/work_queue.h"
#include "tests/base/errors.h"

namespace hvd::parts_test {
namespace {

TEST(ReadyMarks, CompletesABucketWithItsLastGradientInAnyOrder) {
  ReadyMarks marks;
  marks.configure(5, {{0, 2, 0, 20}, {2, 5, 20, 30}});
  EXPECT_EQ(marks.mark(4).completed, ReadyMarks::kNone);
  EXPECT_EQ(marks.mark(1).completed, ReadyMarks::kNone);
  EXPECT_EQ(marks.mark(0).completed, 0U);
  EXPECT_TRUE(marks.ready(0));
  EXPECT_FALSE(marks.ready(1));
  EXPECT_EQ(marks.first_missing(0, 5), 2U);
  EXPECT_EQ(marks.mark(2).completed, ReadyMarks::kNone);
  EXPECT_EQ(marks.mark(3).completed, 1U);
  EXPECT_EQ(marks.first_missing(0, 5), ReadyMarks::kNone);
  marks.reset();
  EXPECT_FALSE(marks.ready(0));
  EXPECT_EQ(marks.first_missing(0, 5), 0U);
}

TEST(ReadyMarks, ASecondMarkIsToldAndChangesNothing) {
  ReadyMarks marks;
  marks.configure(2, {{0, 2, 0, 2}});
  EXPECT_FALSE(marks.mark(1).again);
  EXPECT_TRUE(marks.mark(1).again);
  EXPECT_FALSE(marks.ready(0));
}

TEST(ReadyMarks, TakesEachMarkOnceAcrossWords) {
  ReadyMarks marks;
  marks.configure(130, {{0, 130, 0, 130}});
  std::vector<std::size_t> taken;
  const auto take = [&] { marks.take([&](std::size_t g) { taken.push_back(g); }); };
  EXPECT_FALSE(marks.fresh());
  EXPECT_TRUE(marks.mark_fresh(129));
  EXPECT_TRUE(marks.mark_fresh(63));
  EXPECT_TRUE(marks.mark_fresh(64));
  EXPECT_FALSE(marks.mark_fresh(64));
  EXPECT_TRUE(marks.fresh());
  take();
  EXPECT_EQ(taken, (std::vector<std::size_t>{63, 64, 129}));
  EXPECT_FALSE(marks.fresh());
  EXPECT_TRUE(marks.mark_fresh(0));
  take();
  EXPECT_EQ(taken.back(), 0U);
  EXPECT_EQ(taken.size(), 4U);
}

WorkQueue::Submission tensor_named(const char* name) {
  WorkQueue::Submission submission;
  submission.request.name = name;
  return submission;
}

std::vector<std::string> names_in(const WorkQueue::Taken& taken) {
  std::vector<std::string> names;
  for (const WorkQueue::Submission& submission : taken.submissions) names.push_back(submission.request.name);
  return names;
}

/// This order of events once made ranks disagree. The engine's thread took tensors. Then a tensor and a command were
/// pushed. Then the engine's thread took the command before the tensor.
TEST(WorkQueue, ACommandIsNotTakenBeforeATensorThatTheThreadHasNotSeen) {
  WorkQueue queue;
  WorkQueue::Taken taken;
  const std::function<void()> work = [] {};
  WorkQueue::Command command{work};
  queue.take_up_to_command(taken);
  queue.push(tensor_named("x"));
  queue.push(command);
  EXPECT_EQ(queue.take_command(), nullptr);
  EXPECT_TRUE(queue.ready());
  queue.take_up_to_command(taken);
  EXPECT_EQ(names_in(taken), std::vector<std::string>{"x"});
  EXPECT_FALSE(queue.ready());
  EXPECT_EQ(queue.take_command(), &command);
  EXPECT_TRUE(queue.empty());
}

TEST(WorkQueue, WhatIsBehindACommandWaitsForIt) {
  WorkQueue queue;
  WorkQueue::Taken taken;
  const std::function<void()> work = [] {};
  WorkQueue::Command first{work}, second{work};
  queue.push(tensor_named("a"));
  queue.push(tensor_named("b"));
  queue.push(first);
  queue.push(tensor_named("c"));
  queue.push(second);
  queue.push(Schedule::kStatic);
  queue.take_up_to_command(taken);
  EXPECT_EQ(names_in(taken), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(queue.take_command(), &first);
  EXPECT_EQ(queue.take_command(), nullptr);
  queue.take_up_to_command(taken);
  EXPECT_EQ(names_in(taken), (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(taken.step, Schedule::kNone);
  EXPECT_EQ(queue.take_command(), &second);
  queue.take_up_to_command(taken);
  EXPECT_EQ(taken.step, Schedule::kStatic);
  EXPECT_TRUE(queue.empty());
}

/// A step must be taken together with the tensors that were pushed before the step. The engine reduces these tensors
/// first.
TEST(WorkQueue, AStepDoesNotOvertakeATensor) {
  WorkQueue queue;
  WorkQueue::Taken taken;
  queue.push(tensor_named("loss"));
  queue.push(Schedule::kStatic);
  queue.take_up_to_command(taken);
  EXPECT_EQ(names_in(taken), std::vector<std::string>{"loss"});
  EXPECT_EQ(taken.step, Schedule::kStatic);
  EXPECT_TRUE(queue.empty());
}

TEST(TicketTable, NamesAreFreeAgainOnceFinishedAndTicketsOnceTaken) {
  TicketTable table;
  const auto first = table.issue("a");
  EXPECT_THROW(table.issue("a"), Error);
  EXPECT_FALSE(table.finished(first));
  table.finish(first, {"wrong shape", {}});
  EXPECT_TRUE(table.finished(first));
  const auto second = table.issue("a");
  EXPECT_NE(first, second);
  EXPECT_EQ(table.take(first).error, "wrong shape");
  EXPECT_THROW(static_cast<void>(table.finished(first)), Error);
}

TEST(Fusion, LayoutAlignsEveryStart) {
  std::array<Piece, 3> pieces{{{nullptr, 100, 0}, {nullptr, 64, 0}, {nullptr, 4, 0}}};
  EXPECT_EQ(lay_out(pieces, 64), 196U);
  EXPECT_EQ(pieces[1].offset, 128U);
  EXPECT_EQ(pieces[2].offset, 192U);
  EXPECT_EQ(lay_out(pieces, 0), 168U);
}

TEST(Fusion, InPlaceOnlyWhereTensorsTouchAndLieAsLaidOut) {
  std::array<std::byte, 512> memory{};
  std::array<Piece, 2> touching{{{memory.data(), 64, 0}, {memory.data() + 64, 10, 0}}};
  lay_out(touching, 64);
  EXPECT_TRUE(in_place(touching));
  std::array<Piece, 2> swapped{{{memory.data() + 64, 64, 0}, {memory.data(), 64, 0}}};
  lay_out(swapped, 64);
  EXPECT_FALSE(in_place(swapped));
  // The 4 bytes between the two tensors do not belong to the engine.
  std::array<Piece, 2> gap{{{memory.data(), 60, 0}, {memory.data() + 64, 10, 0}}};
  lay_out(gap, 64);
  EXPECT_FALSE(in_place(gap));
  // These two tensors touch. Another rank that packs the same tensors leaves a gap between them, so this rank must not
  // reduce them in place.
  std::array<Piece, 2> tight{{{memory.data(), 60, 0}, {memory.data() + 60, 10, 0}}};
  lay_out(tight, 64);
  EXPECT_FALSE(in_place(tight));
}

TEST(Fusion, UnpackIsTheInverseOfPackAndTheBufferStaysWithinItsLimit) {
  const auto solo = comm::make_solo();
  FusionBuffer buffer;
  const Deadline deadline = Deadline::after(std::chrono::seconds(5));
  buffer.reserve(100, 1U << 24, solo->data(), deadline);
  EXPECT_EQ(buffer.capacity(), std::size_t{1} << 20);
  buffer.reserve((1U << 20) + 1, 1500000, solo->data(), deadline);
  EXPECT_EQ(buffer.capacity(), 1500000U);
  std::array<char, 9> a{"abcdefgh"}, b{"12345678"};
  std::array<Piece, 2> pieces{
      {{reinterpret_cast<std::byte*>(a.data()), 9, 0}, {reinterpret_cast<std::byte*>(b.data()), 9, 0}}};
  lay_out(pieces, 64);
  std::byte* const packed = buffer.pack(pieces, solo->data());
  EXPECT_EQ(std::memcmp(packed + 64, "12345678", 9), 0);
  packed[0] = std::byte{'X'};
  buffer.unpack(pieces, solo->data());
  EXPECT_STREQ(a.data(), "Xbcdefgh");
  EXPECT_STREQ(b.data(), "12345678");
}

TEST(RollCall, StatusSurvivesTheWire) {
  const auto back = RankStatus::parse(RankStatus{7, 3, true, "step 7, backward of conv1"}.to_text());
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(back->step, 7U);
  EXPECT_EQ(back->moved, 3U);
  EXPECT_TRUE(back->waits);
  EXPECT_EQ(back->activity, "step 7, backward of conv1");
}

TEST(RollCall, BlamesTheSilentBeforeTheSlow) {
  const std::vector<std::string> hosts{"n0", "n0", "n1"};
  const RollCallResult late_rank = find_late_rank(0, {"4 2 1 waiting", std::nullopt, "4 1 1 forward"}, hosts);
  EXPECT_TRUE(late_rank.found);
  EXPECT_EQ(late_rank.text.find("; roll call: rank 1 (host n0) did not answer"), 0U);
  EXPECT_NE(late_rank.text.find("rank 2 (host n1) is furthest behind: forward"), std::string::npos);
}

TEST(RollCall, ARankThatWaitsForItsPeersIsAheadOfOneThatDoesNot) {
  const RollCallResult late_rank = find_late_rank(0, {"4 2 1 a", "4 2 0 b", "4 2 1 c"}, {"n", "n", "n"});
  EXPECT_TRUE(late_rank.found);
  EXPECT_NE(late_rank.text.find("rank 1 (host n) is furthest behind: b"), std::string::npos) << late_rank.text;
}

TEST(RollCall, ARankThatTheCallMetInsideAWaitIsNotToBlame) {
  const RollCallResult late_rank =
      find_late_rank(0, {"4 2 1 a", "waiting in all_reduce 3", "4 2 0 b"}, {"n", "n", "n"});
  EXPECT_NE(late_rank.text.find("rank 2 (host n) is furthest behind"), std::string::npos) << late_rank.text;
  EXPECT_EQ(late_rank.text.find("rank 1"), std::string::npos) << late_rank.text;
}

TEST(RollCall, BlamesNobodyWhenAllAreEquallyFar) {
  const RollCallResult late_rank = find_late_rank(1, {"4 2 1 a", "4 2 1 b"}, {"n0", "n1"});
  EXPECT_FALSE(late_rank.found);
  EXPECT_NE(late_rank.text.find("rank 0 (host n0): a"), std::string::npos);
}

TEST(RollCall, NamesFourOfManySilentRanks) {
  std::vector<std::optional<std::string>> answers(64);
  answers[0] = "1 0 1 here";
  const RollCallResult late_rank = find_late_rank(0, answers, std::vector<std::string>(64, "n"));
  EXPECT_NE(late_rank.text.find("rank 4 (host n) and 59 more did not answer"), std::string::npos) << late_rank.text;
}

TEST(Timeline, RankGoesBeforeTheExtension) {
  EXPECT_EQ(timeline_path("out/timeline.json", 3), "out/timeline.3.json");
  EXPECT_EQ(timeline_path("timeline", 0), "timeline.0");
}

TEST(Timeline, AnUnwritablePathIsAnErrorAtOnce) {
  comm::Topology topology;
  topology.hosts = {"here"};
  test::expect_error(Errc::kIo, "/nonexistent-folder/t.0.json",
                     [&] { TraceWriter writer("/nonexistent-folder/t.json", topology); });
}

TEST(Timeline, AFullDiskIsToldWhenClosing) {
  comm::Topology topology;
  topology.hosts = {"here"};
  // timeline_path() adds the rank to the name, so the file can only be /dev/full if the name is a symbolic link.
  const std::string link = testing::TempDir() + "full.0.json";
  std::remove(link.c_str());
  ASSERT_EQ(symlink("/dev/full", link.c_str()), 0);
  EXPECT_THROW(
      {
        TraceWriter writer(testing::TempDir() + "full.json", topology);
        writer.add(TraceTrack::kCompute, "forward", Clock::now(), Clock::now());
        writer.close();
      },
      Error);
  std::remove(link.c_str());
}

}  // namespace
}  // namespace hvd::parts_test
