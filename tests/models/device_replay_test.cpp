// Tests the replay on a fake GPU, which runs the copies and reports how long each timer would wait. The fake reports
// races, and calls that cannot be captured.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/replay/replay.h"
#include "tests/base/errors.h"
#include "tests/gpu/fake_runtime.h"

namespace hvd::models::device_replay_test {
namespace {

using namespace std::chrono_literals;
using test::expect_error;

ReplayProfile profile() {
  ReplayProfile profile;
  profile.model = "bert";
  profile.unit = "sequences";
  profile.units_per_step = 8;
  profile.device = "a GPU";
  profile.compute_type = "fp16";
  profile.source_run = "b2f7c9d4";
  profile.backward_end_seconds = 0.05;
  profile.update_seconds = 0.004;
  profile.gradients = {{"a", 5, 0, 0.01}, {"b", 10'003, 0, 0.03}, {"c", 1, 0, 0.03}};
  return profile;
}

class OrderSink final : public GradientSink {
 public:
  void gradient_ready(std::size_t parameter) override { ready.push_back(parameter); }
  std::vector<std::size_t> ready;
};

/// A fake GPU with a step that replays profile().
class DeviceReplay : public ::testing::Test {
 protected:
  DeviceReplay() {
    gpu_.on_timer = [this](std::chrono::nanoseconds wait) { waits_.push_back(wait); };
  }
  ~DeviceReplay() override {
    step_.reset();
    arena_.reset();
    for (const std::string& violation : world_.violations()) ADD_FAILURE() << violation;
  }

  DeviceStep& make(ReplayProfile profile, DataType type = DataType::kF32, int rank = 0,
                   std::function<bool()> paced = {}) {
    step_.reset();
    const auto allocate = [this](std::size_t bytes) {
      arena_ = gpu_.allocate(bytes, "the gradients");
      return arena_->bytes;
    };
    step_ = make_device_replay_step(std::move(profile), type, gpu_, allocate, rank, std::move(paced));
    return *step_;
  }
  void wait() { gpu_.synchronize(step_->compute_stream(), Deadline::after(60s), "a step"); }
  /// Overwrites the gradients, as a reduction does.
  void reduce() { gpu_.fill(arena_->bytes.data(), std::byte{0x11}, arena_->bytes.size(), step_->compute_stream()); }
  /// Returns the waits since the last call.
  std::vector<std::chrono::nanoseconds> waits() { return std::exchange(waits_, {}); }

  void expect_known_gradients() {
    for (std::size_t p = 0; p < step_->slots().size(); ++p) {
      std::vector<float> values(step_->slots()[p].count);
      step_->read_gradient(p, values);
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < values.size(); ++i) wrong += values[i] != replay_gradient_value(p, i) ? 1 : 0;
      EXPECT_EQ(wrong, 0U) << "elements of gradient " << p;
    }
  }

  test::FakeWorld world_{3};
  test::FakeRuntime gpu_{world_, 0};
  gpu::DeviceMemory arena_;
  std::unique_ptr<DeviceStep> step_;
  std::vector<std::chrono::nanoseconds> waits_;
};

TEST_F(DeviceReplay, GradientsAreKnownAndFreshInEveryStep) {
  for (const DataType type : {DataType::kF32, DataType::kBF16, DataType::kF16}) {
    make(profile(), type);
    EXPECT_EQ(step_->memory().gradients, 10'009 * size_of(type));
    OrderSink sink;
    for (int round = 0; round < 2; ++round) {
      step_->forward_backward({}, sink);
      expect_known_gradients();
      reduce();
    }
    EXPECT_EQ(sink.ready, (std::vector<std::size_t>{0, 1, 2, 0, 1, 2}));
  }
}

// The two graphs of a training loop, launched in turn with a new factor each.
TEST_F(DeviceReplay, ACapturedStepTakesTheFactorOfItsLaunch) {
  ReplayProfile recorded = profile();
  recorded.factors = {1, 0.5, 2.25};
  make(recorded, DataType::kF32, 1);
  const gpu::StreamView stream = step_->compute_stream();
  OrderSink sink;
  const auto capture = [&] {
    gpu::Capture recording(gpu_, stream);
    step_->enqueue_forward_backward(sink);
    reduce();
    step_->enqueue_update();
    return recording.finish();
  };
  const gpu::Graph graphs[] = {capture(), capture()};
  EXPECT_EQ(gpu_.shape(graphs[0])->kernels, 1 + 3 + 1 + 2U) << "start, gradients, end of backward, update";
  EXPECT_EQ(gpu_.shape(graphs[0])->copies, 3U);
  EXPECT_TRUE(gpu_.shape(graphs[0])->in_a_row);
  EXPECT_TRUE(waits().empty()) << "nothing runs during a capture";
  const std::size_t first = first_factor(1, 3);
  for (std::size_t k = 0; k < 5; ++k) {
    step_->load({}, Deadline::after(60s));
    step_->set_sgd({});
    gpu_.launch(graphs[k % 2], stream);
    if (k % 2 == 0) continue;  // the next step is launched while this one runs
    wait();
    std::vector<std::chrono::nanoseconds> expected;
    for (const std::size_t step : {k - 1, k}) {
      const double factor = recorded.factors[(first + step) % 3];
      for (const auto recorded_wait : {10ms, 30ms, 30ms, 50ms}) {
        expected.push_back(std::chrono::round<std::chrono::nanoseconds>(factor * recorded_wait));
      }
      expected.emplace_back(4ms);  // an update has no factor
    }
    EXPECT_EQ(waits(), expected) << "steps " << k - 1 << " and " << k;
  }
  wait();
}

TEST_F(DeviceReplay, AGradientLongerThanThePatternIsFilledInPieces) {
  ReplayProfile big = profile();
  big.gradients = {
      {"a", 3, 0, 0.01}, {"b", std::size_t{7} << 20U, 0, 0.01}, {"c", (std::size_t{7} << 20U) + 2, 0, 0.01}};
  make(big, DataType::kBF16);
  OrderSink sink;
  step_->forward_backward({}, sink);
  expect_known_gradients();
}

// A GPU reports gradients later than the host hands them over, so both times are recorded.
TEST_F(DeviceReplay, TheHostHandsGradientsOverWhenItDidWhereThatIsAskedFor) {
  ReplayProfile recorded = profile();
  recorded.gradients[0].submit_seconds = 0.002;
  recorded.gradients[2].submit_seconds = 0.005;
  class Times final : public GradientSink {
   public:
    void gradient_ready(std::size_t /*parameter*/) override { since_begin.push_back(Clock::now() - begin); }
    Clock::time_point begin = Clock::now();
    std::vector<Clock::duration> since_begin;
  };
  bool paced = true;
  make(recorded, DataType::kF32, 0, [&] { return paced; });
  step_->load({}, Deadline::after(60s));
  Times times;
  step_->enqueue_forward_backward(times);
  ASSERT_EQ(times.since_begin.size(), 3U);
  EXPECT_GE(times.since_begin[0], 2ms);
  EXPECT_GE(times.since_begin[2], 5ms);
  wait();
  EXPECT_EQ(waits().at(0), 10ms) << "the GPU's timers do not depend on it";

  recorded.gradients[0].submit_seconds = 86400;
  paced = false;
  make(recorded, DataType::kF32, 0, [&] { return paced; });
  step_->load({}, Deadline::after(60s));
  step_->enqueue_forward_backward(times);  // would last a day
}

TEST_F(DeviceReplay, RefusesWaitsThatATimerCannotMake) {
  const auto refused = [&](const ReplayProfile& wrong, const std::string& what) {
    expect_error(Errc::kUnsupported, {"replay of bert on a GPU", what, "500 ms at most"}, [&] { make(wrong); });
  };
  ReplayProfile wrong = profile();
  wrong.gradients[1].ready_seconds = 0.511;
  refused(wrong, "gradient b takes 0.501 s");
  wrong = profile();
  wrong.factors = {1, 26};
  refused(wrong, "gradient b takes 0.52 s");
  wrong = profile();
  wrong.backward_end_seconds = 86400;
  refused(wrong, "the end of backward");
  wrong = profile();
  wrong.update_seconds = 0.51;
  refused(wrong, "the update");
  wrong = profile();
  wrong.gradients.clear();
  expect_error(Errc::kInvalidArgument, {"bert", "no gradients"}, [&] { make(wrong); });
  gpu_.no_scaling = "this build has no kernels";
  expect_error(Errc::kUnsupported, {"GPU 0", "replay of bert", "this build has no kernels"}, [&] { make(profile()); });
}

TEST_F(DeviceReplay, HasNoWeightsAndNoLoss) {
  make(profile());
  std::vector<float> values(5);
  expect_error(Errc::kUnsupported, {"no weights"}, [&] { step_->read_parameter(0, values); });
  expect_error(Errc::kInvalidArgument, {"gradient 1"}, [&] { step_->read_gradient(1, values); });
  EXPECT_TRUE(step_->state_to_broadcast().empty());
  EXPECT_EQ(step_->loss(1), 0);
  EXPECT_EQ(step_->description(), "replay of run b2f7c9d4 (bert, fp16, a GPU) by timers on a GPU");
}

}  // namespace
}  // namespace hvd::models::device_replay_test
