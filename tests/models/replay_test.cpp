#include "models/replay/replay.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <thread>
#include <tuple>

#include "models/train_step.h"
#include "tests/models/small_graphs.h"
#include "tests/models/testing.h"

namespace hvd::models::replay_test {
namespace {

using testing::expect_error;
using testing::RecordingSink;

ReplayProfile sample() {
  ReplayProfile profile;
  profile.model = "vgg16";
  profile.units_per_step = 8;
  profile.image_size = 224;
  profile.device = "Some Processor (R) @ 2.0 GHz, 2 cores";
  profile.compute_type = "bf16";
  profile.source_run = "b2f7c9d4-0000-4000-8000-000000000001";
  profile.forward_seconds = 0.1;
  profile.backward_end_seconds = 0.3 + 1e-17;
  profile.update_seconds = 1.0 / 3;
  profile.gradients = {{"classifier.6.weight", 10, 0.125, 0.1250001}, {"a name with spaces", 70'000, 0.2, 0.25}};
  return profile;
}

void expect_equal(const ReplayProfile& a, const ReplayProfile& b) {
  const auto facts = [](const ReplayProfile& p) {
    return std::tie(p.model, p.unit, p.units_per_step, p.image_size, p.device, p.compute_type, p.source_run,
                    p.forward_seconds, p.backward_end_seconds, p.update_seconds, p.factors);
  };
  EXPECT_EQ(facts(a), facts(b));
  ASSERT_EQ(a.gradients.size(), b.gradients.size());
  const auto fields = [](const ReplayProfile::Gradient& g) {
    return std::tie(g.name, g.count, g.submit_seconds, g.ready_seconds);
  };
  for (std::size_t i = 0; i < a.gradients.size(); ++i) EXPECT_EQ(fields(a.gradients[i]), fields(b.gradients[i])) << i;
}

ReplayProfile sequences() {
  ReplayProfile profile = sample();
  profile.unit = "sequences";
  profile.image_size = 0;
  profile.forward_seconds = 0;
  profile.factors = {1, 0.998001, 1.25};
  return profile;
}

TEST(ReplayText, RoundTripsExactly) {
  for (const ReplayProfile& profile : {sample(), sequences()}) {
    const std::string text = to_text(profile);
    expect_equal(parse_replay(text, "x"), profile);
    EXPECT_EQ(to_text(parse_replay(text, "x")), text);
  }
  ReplayProfile bare;
  bare.units_per_step = bare.image_size = 1;
  expect_equal(parse_replay(to_text(bare), "x"), bare);
}

// The hash of the text is part of a run's fingerprint, and programs that know only version 1 must go on to read it.
TEST(ReplayText, WritesTheOldestVersionThatCanExpressTheProfile) {
  EXPECT_EQ(to_text(sample()).substr(0, 53), "hvd-replay 1\nmodel vgg16\nbatch_size 8\nimage_size 224\n");
  ReplayProfile factors = sample();
  factors.factors = {1};
  for (const ReplayProfile& profile : {sequences(), factors}) {
    EXPECT_TRUE(to_text(profile).starts_with("hvd-replay 2\n")) << to_text(profile);
  }
}

TEST(ReplayText, Version1HasNothingOfVersion2AndTheOtherWayRound) {
  std::string text = to_text(sample());
  text.replace(0, 12, "hvd-replay 2");
  expect_error(Errc::kInvalidArgument, {"f:3", "unknown key 'batch_size'"}, [&] { parse_replay(text, "f"); });
  text = to_text(sequences());
  text.replace(0, 12, "hvd-replay 1");
  expect_error(Errc::kInvalidArgument, {"f:3", "unknown key 'unit'"}, [&] { parse_replay(text, "f"); });
}

// Damages the lines of a file one at a time. The error must name the file and the damaged line.
TEST(ReplayText, ErrorsNameFileAndLine) {
  const std::string text = to_text(sample()), text2 = to_text(sequences());
  const auto changed = [](std::string whole, const std::string& from, const std::string& to) {
    const std::size_t at = whole.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return whole.replace(at, from.size(), to);
  };
  const auto with = [&](const std::string& from, const std::string& to) { return changed(text, from, to); };
  const auto with2 = [&](const std::string& from, const std::string& to) { return changed(text2, from, to); };
  std::string many = "factors 1";
  for (std::size_t i = 0; i < kMaxFactors; ++i) many += " 1";
  struct Case {
    std::string text, where, what;
  };
  const Case cases[] = {
      {"", "f.replay:1", "hvd-replay 1"},
      {with("hvd-replay 1", "hvd-replay 1\r"), "f.replay:1", "line ends of Windows"},
      {"\xEF\xBB\xBF" + text, "f.replay:1", "begins with a byte-order mark; remove it: sed -i '1s/^\\xEF"},
      {with("end 2", "end 2\r"), "f.replay:13", "line ends of Windows"},
      {with("hvd-replay 1", "hvd-replay 3"), "f.replay:1", "the first line must be"},
      {with2("unit sequences", "unit \x1b[31m"), "f.replay:3", "small letters"},
      {with2("unit sequences", "unit "), "f.replay:3", "small letters"},
      {with2("unit sequences", "unit abcdefghijklmnopqrstuvwxyz"), "f.replay:3", "small letters"},
      {with2("unit sequences\n", ""), "f.replay:12", "'unit' is missing"},
      {with2("units_per_step 8", "units_per_step 0"), "f.replay:4", "at least 1"},
      {with2("1.25", "nan"), "f.replay:10", "a factor must be"},
      {with2("1.25", "0"), "f.replay:10", "a factor must be"},
      {with2("factors 1 0.998001", "factors  0.998001"), "f.replay:10", "'' is not a factor"},
      {with2("factors 1 0.998001 1.25", many), "f.replay:10", "more than 4096 factors"},
      {with("model vgg16", "modell vgg16"), "f.replay:2", "unknown key 'modell'"},
      {with("batch_size 8", "batch_size 0"), "f.replay:3", "at least 1"},
      {with("batch_size 8", "batch_size 99999999999"), "f.replay:3", "at most"},
      {with("forward_seconds 0.1", "forward_seconds 1e300"), "f.replay:8", "at most a day"},
      {with("gradient 10", "gradient 9223372036854775807"), "f.replay:11", "at most"},
      {with("image_size 224", "image_size 224x"), "f.replay:4", "'224x'"},
      {with("device Some", "model Some"), "f.replay:5", "'model' appears twice"},
      {with("forward_seconds 0.1", "forward_seconds -0.1"), "f.replay:8", "negative"},
      {with("forward_seconds 0.1", "forward_seconds nan"), "f.replay:8", "finite"},
      {with("gradient 10 0.125 ", "gradient 10 "), "f.replay:11", "elements submit ready name"},
      {with("gradient 10", "gradient -1"), "f.replay:11", "at least 1"},
      {with("a name with spaces", "classifier.6.weight"), "f.replay:12", "appears twice"},
      {with("end 2", "end 3"), "f.replay:13", "3 gradients and holds 2"},
      {with("end 2\n", ""), "f.replay:12", "'end' line is missing"},
      {text + "more\n", "f.replay:13", "after the 'end' line"},
      {with("update_seconds " + std::string("0.3333333333333333"), "end 0"), "f.replay:10", "missing"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    expect_error(Errc::kInvalidArgument, {c.where, c.what}, [&] { parse_replay(c.text, "f.replay"); });
  }
  try {
    parse_replay(with("batch_size 8", "batch_size " + std::string(1'000'000, '9')), "f.replay");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_LT(std::string(error.what()).size(), 400U);
  }
}

TEST(ReplayText, ATruncatedFileIsNeverAccepted) {
  const std::string text = to_text(sample());
  for (std::size_t size = 0; size + 1 < text.size(); ++size) {  // only the last line break may be missing
    EXPECT_THROW(parse_replay(text.substr(0, size), "f"), Error) << "accepted " << size << " bytes";
  }
}

TEST(ReplayText, RefusesToWriteWhatItCouldNotRead) {
  ReplayProfile profile = sample();
  profile.device = "two\nlines";
  expect_error(Errc::kInvalidArgument, {"device", "line break"}, [&] { to_text(profile); });
}

ReplayProfile quick() {
  ReplayProfile profile = sample();
  profile.gradients = {{"a", 5, 0.01, 0.01}, {"b", 100'003, 0.03, 0.03}, {"c", 1, 0.03, 0.03}};
  profile.backward_end_seconds = 0.05;
  profile.update_seconds = 0.01;
  return profile;
}

TEST(ReplayProfile, ShrunkGradientsKeepTheirTimesAndTellInTheName) {
  const ReplayProfile shrunk = shrink_gradients(quick(), 64);
  EXPECT_EQ(shrunk.model, "vgg16-div64");
  ASSERT_EQ(shrunk.gradients.size(), 3U);
  EXPECT_EQ(shrunk.gradients[0].count, 1U) << "5 / 64, but never none";
  EXPECT_EQ(shrunk.gradients[1].count, 1563U) << "100003 / 64 = 1562.5...";
  EXPECT_EQ(shrunk.gradients[1].ready_seconds, 0.03);
  EXPECT_EQ(shrunk.backward_end_seconds, 0.05);
  expect_equal(shrink_gradients(quick(), 1), quick());
  expect_error(Errc::kInvalidArgument, {"vgg16", "divided by 0"}, [] { shrink_gradients(quick(), 0); });
}

class TimingSink final : public GradientSink {
 public:
  void gradient_ready(std::size_t /*parameter*/) override {
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  Clock::time_point start = Clock::now();
  std::vector<double> seconds;
};

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

TEST(ReplayStep, NeverReportsEarlyAndNeverSpins) {
  const HeapArena arena = make_heap_arena();
  const auto step = make_replay_step(quick(), DataType::kF32, arena.allocate);
  const double processor_start = processor_seconds();
  TimingSink sink;
  step->forward_backward({}, sink);
  const double backward = std::chrono::duration<double>(Clock::now() - sink.start).count();
  ASSERT_EQ(sink.seconds.size(), 3U);
  EXPECT_GE(sink.seconds[0], 0.01);
  EXPECT_GE(sink.seconds[1], 0.03);
  EXPECT_GE(sink.seconds[2], sink.seconds[1]);
  EXPECT_GE(backward, 0.05);
  step->update({});
  EXPECT_GE(std::chrono::duration<double>(Clock::now() - sink.start).count(), 0.06);
  // If the step sleeps, it takes microseconds of processor time. If it spun, it would take the whole 60 ms.
  EXPECT_LT(processor_seconds() - processor_start, 0.03);
}

TEST(ReplayStep, TakesTheFactorsInTurnFromAPlaceOfItsRank) {
  ReplayProfile profile = quick();
  profile.gradients.resize(1);
  profile.backward_end_seconds = 0.01;
  profile.factors = {1, 4, 16};
  const HeapArena arena = make_heap_arena();
  for (const int rank : {0, 1, 2}) {
    const auto step = make_replay_step(profile, DataType::kF32, arena.allocate, rank);
    for (std::size_t k = 0; k < 4; ++k) {
      const double factor = profile.factors[(first_factor(rank, 3) + k) % 3];
      TimingSink sink;
      step->forward_backward({}, sink);
      EXPECT_GE(sink.seconds.at(0), factor * 0.01) << "rank " << rank << ", step " << k;
    }
  }
}

TEST(ReplayStep, RanksAreSpreadOverTheFactors) {
  EXPECT_EQ(first_factor(3, 0), 0U);
  std::vector<std::size_t> first;
  for (int rank = 0; rank < 512; ++rank) {
    first.push_back(first_factor(rank, 4096));
    EXPECT_LT(first.back(), 4096U);
  }
  std::sort(first.begin(), first.end());
  for (std::size_t i = 1; i < first.size(); ++i) EXPECT_GE(first[i] - first[i - 1], 3U);
}

TEST(ReplayStep, GradientsAreKnownAndFreshInEveryStep) {
  const HeapArena arena = make_heap_arena();
  for (const DataType type : {DataType::kF32, DataType::kBF16, DataType::kF16, DataType::kF64}) {
    const auto step = make_replay_step(quick(), type, arena.allocate);
    RecordingSink sink;
    for (int round = 0; round < 2; ++round) {
      step->forward_backward({}, sink);
      for (std::size_t p = 0; p < step->slots().size(); ++p) {
        std::vector<float> values(step->slots()[p].count);
        step->read_gradient(p, values);
        for (std::size_t i = 0; i < values.size(); ++i) {
          ASSERT_EQ(values[i], replay_gradient_value(p, i)) << "gradient " << p << " element " << i;
        }
      }
      const auto bytes = step->gradient_arena();  // overwrites the gradients in place, like a reduction
      std::fill(bytes.begin(), bytes.end(), std::byte{0x11});
    }
    EXPECT_EQ(sink.ready, (std::vector<std::size_t>{0, 1, 2, 0, 1, 2}));
    EXPECT_EQ(step->memory().gradients, (5U + 100'003 + 1) * size_of(type));
  }
}

TEST(ReplayStep, SumsOverHundredsOfRanksAreExactInSixteenBits) {
  for (std::size_t element = 0; element < 7; ++element) {
    const std::vector<double> sum{512 * replay_gradient_value(3, element)};
    for (const DataType type : {DataType::kBF16, DataType::kF16}) {
      std::vector<std::byte> stored(2);
      store(type, sum, stored);
      EXPECT_EQ(load(type, stored, 0), sum[0]);
    }
  }
}

TEST(ReplayStep, RefusesWhatItCannotDo) {
  const HeapArena arena = make_heap_arena();
  ReplayProfile empty = sample();
  empty.gradients.clear();
  expect_error(Errc::kInvalidArgument, {"vgg16", "no gradients"},
               [&] { make_replay_step(empty, DataType::kF32, arena.allocate); });
  const auto step = make_replay_step(quick(), DataType::kF32, arena.allocate);
  std::vector<float> values(5);
  expect_error(Errc::kUnsupported, {"vgg16", "no weights"}, [&] { step->read_parameter(0, values); });
  expect_error(Errc::kUnsupported, {"no weights"}, [&] { step->write_parameter(0, values); });
  expect_error(Errc::kInvalidArgument, {"gradient 1"}, [&] { step->read_gradient(1, values); });
  EXPECT_TRUE(step->state_to_broadcast().empty());
}

void sleep_seconds(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

TEST(ReplayRecorder, TakesTheMedianAndLeavesTheWaitOutOfTheUpdate) {
  const std::vector<ArenaSlot> slots{{"a", 0, 5, {5}}, {"b", 5, 7, {7}}};
  ReplayRecorder recorder(slots, sample());
  for (const double slow : {0.0, 0.5, 0.0}) {  // the second of three steps is disturbed
    recorder.begin_step();
    sleep_seconds(0.005 + slow);
    recorder.end_forward();
    sleep_seconds(0.005);
    recorder.gradient_ready(0);
    sleep_seconds(0.01);
    recorder.gradient_ready(1);
    recorder.end_backward();
    sleep_seconds(0.3);  // stands for the wait for the reduction
    recorder.begin_update();
    sleep_seconds(0.005);
    recorder.end_update();
  }
  const ReplayProfile profile = recorder.profile();
  EXPECT_EQ(profile.model, "vgg16");
  ASSERT_EQ(profile.gradients.size(), 2U);
  EXPECT_EQ(profile.gradients[1].name, "b");
  EXPECT_EQ(profile.gradients[1].count, 7U);
  EXPECT_GE(profile.forward_seconds, 0.005);
  EXPECT_LE(profile.forward_seconds + 0.005, profile.gradients[0].ready_seconds);
  ASSERT_EQ(profile.factors.size(), 3U);
  EXPECT_GT(profile.factors[1], profile.factors[0]);
  EXPECT_GE(profile.gradients[0].ready_seconds, 0.01);
  EXPECT_GE(profile.gradients[1].ready_seconds, profile.gradients[0].ready_seconds + 0.01);
  EXPECT_LT(profile.gradients[1].ready_seconds, 0.5);
  EXPECT_EQ(profile.gradients[1].submit_seconds, profile.gradients[1].ready_seconds);
  EXPECT_GE(profile.backward_end_seconds, profile.gradients[1].ready_seconds);
  EXPECT_GE(profile.update_seconds, 0.005);
  EXPECT_LT(profile.update_seconds, 0.3);
  expect_equal(parse_replay(to_text(profile), "x"), profile);
}

TEST(ReplayRecorder, RefusesAnEmptyRecording) {
  ReplayRecorder recorder({{"a", 0, 5, {5}}}, sample());
  expect_error(Errc::kInvalidArgument, {"vgg16", "no complete step"}, [&] { (void)recorder.profile(); });
  recorder.begin_step();
  recorder.gradient_ready(0);
  expect_error(Errc::kInvalidArgument, {"no complete step"}, [&] { (void)recorder.profile(); });
}

TEST(ReplayRecorder, TakesTimesThatWereMeasuredElsewhere) {
  ReplayRecorder recorder({{"a", 0, 5, {5}}, {"b", 5, 7, {7}}}, sample());
  recorder.add({.submit = {0.001, 0.002}, .ready = {0.010, 0.020}, .backward_end = 0.030, .update = 0.004});
  recorder.add({.submit = {0.003, 0.006}, .ready = {0.012, 0.028}, .backward_end = 0.050, .update = 0.006});
  recorder.add({.submit = {0.002, 0.004}, .ready = {0.011, 0.024}, .backward_end = 0.040, .update = 0.005});
  const ReplayProfile profile = recorder.profile();
  EXPECT_EQ(profile.gradients[0].submit_seconds, 0.002);
  EXPECT_EQ(profile.gradients[0].ready_seconds, 0.011);
  EXPECT_EQ(profile.gradients[1].submit_seconds, 0.004);
  EXPECT_EQ(profile.gradients[1].ready_seconds, 0.024);
  EXPECT_EQ(profile.backward_end_seconds, 0.040);
  EXPECT_EQ(profile.factors, (std::vector<double>{0.75, 1.25, 1}));
  EXPECT_EQ(profile.forward_seconds, 0) << "not measured";
  EXPECT_EQ(profile.update_seconds, 0.005);
  expect_error(Errc::kInvalidArgument, {"vgg16", "1 and 2 times for 2 gradients"}, [&] {
    recorder.add({.submit = {0}, .ready = {0, 0}});
  });
}

// Records a step of the reference backend. The replayed step must have the same gradients, sizes and order.
TEST(ReplayRecorder, RecordsARealStep) {
  testing::Rank rank(testing::tiny_vgg(2), {});
  class Forward final : public GradientSink {
   public:
    explicit Forward(ReplayRecorder& recorder) : recorder_(recorder) {}
    void gradient_ready(std::size_t parameter) override { recorder_.gradient_ready(parameter); }

   private:
    ReplayRecorder& recorder_;
  };
  const auto slots = rank.step->slots();
  ReplayRecorder recorder({slots.begin(), slots.end()}, sample());
  Forward sink(recorder);
  recorder.begin_step();
  rank.step->forward_backward({.images = rank.images, .labels = rank.labels}, sink);
  recorder.end_backward();
  rank.step->update({});
  recorder.end_update();
  const HeapArena arena = make_heap_arena();
  const auto replay = make_replay_step(recorder.profile(), DataType::kF32, arena.allocate);
  ASSERT_EQ(replay->slots().size(), slots.size());
  double previous = 0;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    EXPECT_EQ(replay->slots()[i].name, slots[i].name);
    EXPECT_EQ(replay->slots()[i].offset, slots[i].offset);
    EXPECT_EQ(replay->slots()[i].count, slots[i].count);
    EXPECT_GE(recorder.profile().gradients[i].ready_seconds, previous);
    previous = recorder.profile().gradients[i].ready_seconds;
  }
  EXPECT_EQ(replay->gradient_arena().size(), rank.step->gradient_arena().size());
}

}  // namespace
}  // namespace hvd::models::replay_test
