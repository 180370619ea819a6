#include "bench/train/trainer.h"

#include <algorithm>
#include <exception>
#include <new>
#include <utility>
#include <vector>

#include "bench/train/checksum.h"
#include "bench/train/memory.h"
#include "engine/base/deadline.h"
#include "engine/base/error.h"
#include "models/graph/autodiff.h"
#include "models/graph/cost.h"

namespace hvd::bench {
namespace {

double seconds(std::chrono::nanoseconds time) { return std::chrono::duration<double>(time).count(); }

constexpr double kImageChannels = 3;

}  // namespace

// Hands gradients to the engine from inside backward, where nothing may be thrown: a fault is kept for after.
class Trainer::Sink final : public models::GradientSink {
 public:
  Sink(Engine& engine, models::ReplayRecorder* recorder, const StepProbe* probe)
      : engine_(engine), recorder_(recorder), probe_(probe) {}

  void gradient_ready(std::size_t parameter) override {
    if (fault_) return;
    try {
      if (recorder_ != nullptr) recorder_->gradient_ready(parameter);
      if (probe_ != nullptr && probe_->gradient) probe_->gradient(parameter);
      engine_.gradient_ready(parameter);
    } catch (...) {
      fault_ = std::current_exception();
    }
  }
  void throw_fault() const {
    if (fault_) std::rethrow_exception(fault_);
  }

 private:
  Engine& engine_;
  models::ReplayRecorder* recorder_;
  const StepProbe* probe_;
  std::exception_ptr fault_;
};

Trainer::Trainer(const Setup& setup, Engine& engine, int threads) : setup_(setup), engine_(engine) {
  models::StepOptions options;
  options.compute = setup.compute;
  options.gradient = setup.gradient;
  options.threads = threads;
  options.seed = setup.seed;
  options.profile = setup.profile;
  std::span<std::byte> arena;
  build(options, [&](std::size_t bytes) { return arena = engine_.allocate(bytes); });

  std::vector<core::GradientInfo> gradients;
  for (const models::ArenaSlot& slot : step_->slots()) gradients.push_back({slot.name, slot.offset, slot.count});
  engine_.set_gradients(std::move(gradients), step_->gradient_arena().data(), step_->gradient_type(), reduction());
}

void Trainer::build(const models::StepOptions& options, const models::ArenaAllocator& allocate) {
  if (setup_.replay) {
    std::size_t elements = 0;
    for (const auto& gradient : setup_.replay->gradients) elements += gradient.count;
    refuse_profile_too_big(static_cast<std::int64_t>(elements * size_of(setup_.gradient)),
                           engine_.topology().local_size, available_bytes());
    engine_.barrier();  // as below
    step_ = models::make_replay_step(*setup_.replay, setup_.gradient, allocate);
    facts_.parameters = static_cast<std::int64_t>(elements);
    return;
  }
  models::Graph graph = models::differentiate(models::build_model(setup_.model));
  facts_ = {graph.parameter_count(), models::step_flops_per_image(graph)};
  const MemoryForecast forecast = forecast_memory(graph, options);
  // Before anything is allocated: an overcommitting kernel would hand it all out and kill the rank later.
  refuse_if_too_big(forecast, engine_.topology().local_size, available_bytes());
  engine_.barrier();  // no rank of this host allocates while another still looks at what is free
  try {
    step_ = setup_.device == Device::kReference ? models::make_reference_step(std::move(graph), options, allocate)
                                                : models::make_onednn_step(std::move(graph), options, allocate);
    const auto elements = static_cast<std::int64_t>(kImageChannels) * setup_.model.image_size * setup_.model.image_size;
    batches_.emplace(models::SyntheticSpec{setup_.seed, elements, setup_.model.classes}, setup_.model.batch_size,
                     setup_.batches > 0 ? setup_.batches : batches_to_cycle(setup_.model.batch_size, elements),
                     BatchPlace{engine_.rank(), engine_.size()});
  } catch (const std::bad_alloc&) {
    // What is free now, after unwinding, is what there was to share.
    refuse_if_too_big(forecast, engine_.topology().local_size, available_bytes());
    throw Error(Errc::kOutOfMemory, "batch " + std::to_string(setup_.model.batch_size) +
                                        ": no memory for the network on " +
                                        engine_.topology().hosts.at(static_cast<std::size_t>(engine_.rank())) +
                                        "; use a smaller --batch-size");
  }
}

void Trainer::start() {
  for (const std::span<std::byte> state : step_->state_to_broadcast()) {
    engine_.broadcast(state.data(), state.size(), 0);
  }
  step_->state_changed();
}

ReduceOp Trainer::reduction() const { return setup_.gradient == DataType::kF16 ? ReduceOp::kAverage : ReduceOp::kSum; }

models::SgdOptions Trainer::sgd(Phase phase) const {
  models::SgdOptions options = setup_.sgd;
  if (phase == Phase::kFull) {
    options.learning_rate *= engine_.size();
    if (reduction() == ReduceOp::kSum) options.gradient_scale = 1.0 / engine_.size();
    if (last_phase_ && *last_phase_ != Phase::kFull) options.momentum = 0;
  } else if (setup_.reduces()) {
    options.learning_rate = 0;
  }
  return options;
}

StepTimes Trainer::step(Phase phase, const StepProbe* probe) {
  if (phase != last_phase_) engine_.set_schedule(phase == Phase::kFull ? setup_.schedule : Schedule::kNone);
  const models::SgdOptions options = sgd(phase);
  const models::Batch batch = batches_ ? batches_->at(steps_) : models::Batch{};  // a replay reads none
  Sink sink(engine_, recorder_, probe);

  engine_.set_activity("forward and backward", steps_);
  const auto begin = Clock::now();
  if (recorder_ != nullptr) recorder_->begin_step();
  engine_.begin_step();
  StepTimes times;
  times.loss = step_->forward_backward(batch, sink);
  if (recorder_ != nullptr) recorder_->end_backward();
  const auto computed = Clock::now();
  sink.throw_fault();
  engine_.set_activity("waiting for the last gradients", steps_);
  const StepReport report = engine_.finish_step();
  if (probe != nullptr && probe->reduced) probe->reduced();
  engine_.set_activity("update", steps_);
  const auto reduced = Clock::now();
  if (recorder_ != nullptr) recorder_->begin_update();
  step_->update(options);
  const auto end = Clock::now();
  if (recorder_ != nullptr) recorder_->end_update();
  engine_.set_activity("between steps", steps_);

  if (engine_.tracing()) {
    engine_.trace_span("forward and backward", begin, computed);
    engine_.trace_span("update", reduced, end);
  }
  times.step = seconds(end - begin);
  times.compute = seconds(computed - begin);
  times.update = seconds(end - reduced);
  times.exposed = seconds(report.exposed);
  times.reduce = seconds(report.reduce);
  times.control = seconds(report.control);
  times.copy = seconds(report.copy);
  last_phase_ = phase;
  ++steps_;
  return times;
}

void Trainer::sit_out(Phase phase, std::uint64_t steps) {
  steps_ += steps;
  last_phase_ = phase;
}

std::unique_ptr<models::ReplayRecorder> Trainer::make_recorder(const std::string& source_run) const {
  models::ReplayProfile header;
  header.model = setup_.model.model;
  header.batch_size = setup_.model.batch_size;
  header.image_size = setup_.model.image_size;
  header.device = step_->description();
  header.compute_type = setup_.compute_name();
  header.source_run = source_run;
  const std::span<const models::ArenaSlot> slots = step_->slots();
  return std::make_unique<models::ReplayRecorder>(std::vector<models::ArenaSlot>(slots.begin(), slots.end()),
                                                  std::move(header));
}

std::vector<std::uint64_t> Trainer::gradient_checksums() {
  const std::size_t element = size_of(step_->gradient_type());
  const std::span<const std::byte> arena = step_->gradient_arena();
  std::vector<std::uint64_t> checksums;
  for (const models::ArenaSlot& slot : step_->slots()) {
    checksums.push_back(Checksum().add(arena.subspan(slot.offset * element, slot.count * element)).value());
  }
  return checksums;
}

std::vector<std::uint64_t> Trainer::parameter_checksums() {
  if (setup_.replay) return {};
  std::vector<std::uint64_t> checksums;
  std::vector<float> values;
  for (std::size_t i = 0; i < step_->slots().size(); ++i) {
    values.resize(static_cast<std::size_t>(step_->slots()[i].shape.count()));
    step_->read_parameter(i, values);
    checksums.push_back(Checksum().add(std::as_bytes(std::span(values))).value());
  }
  return checksums;
}

std::int64_t Trainer::planned_bytes(bool processes) const {
  std::size_t bytes = step_->memory().total() + (batches_ ? batches_->bytes() : 0);
  const comm::Topology& topology = engine_.topology();
  if (setup_.reduces() && topology.size > 1) {
    const std::size_t arena = step_->memory().gradients;
    if (setup_.schedule == Schedule::kNegotiated) bytes += std::min(setup_.fusion_threshold_bytes, arena);
    const auto peers = static_cast<std::size_t>(topology.local_size - 1);
    if (processes) bytes += arena * peers;
  }
  return static_cast<std::int64_t>(bytes);
}

}  // namespace hvd::bench
