#include "bench/train/trainer.h"

#include <algorithm>

#include "bench/train/checksum.h"
#include "bench/world/setup.h"

namespace hvd::bench {
namespace {

/// Returns the global number of the first sample in the rank's batch of step `step`.
std::uint64_t first_sample(std::uint64_t step, BatchPlace place, std::size_t batch_size) {
  return (step * static_cast<std::uint64_t>(place.world_size) + static_cast<std::uint64_t>(place.rank)) * batch_size;
}

constexpr std::int64_t kImageChannels = 3;
// Bytes of gradients that a device copies to the host at a time for checksums. A multiple of Checksum's stride.
constexpr std::size_t kChecksumBytes = std::size_t{32} << 20;

}  // namespace

SyntheticBatches::SyntheticBatches(const models::SyntheticSpec& spec, std::int64_t batch_size, int count,
                                   BatchPlace place, models::LabelRule rule)
    : spec_(spec), place_(place), rule_(rule), labels_(static_cast<std::size_t>(batch_size)) {
  for (int k = 0; k < count; ++k) {
    images_.emplace_back(labels_.size() * static_cast<std::size_t>(spec.image_elements));
    models::synthetic_batch(spec, first_sample(static_cast<std::uint64_t>(k), place, labels_.size()), images_.back(),
                            labels_);
  }
}

models::Batch SyntheticBatches::at(std::uint64_t step) {
  const std::uint64_t k = step % images_.size();
  const bool fresh = rule_ == models::LabelRule::kFresh;
  models::synthetic_labels(spec_, first_sample(fresh ? step : k, place_, labels_.size()), labels_);
  models::Batch batch;
  batch.images = images_[k];
  batch.labels = labels_;
  batch.step = step;
  batch.content = k + 1;
  batch.first_sample = first_sample(step, place_, labels_.size());
  return batch;
}

std::size_t SyntheticBatches::bytes() const {
  std::size_t total = labels_.size() * sizeof(std::int32_t);
  for (const auto& images : images_) total += images.size() * sizeof(float);
  return total;
}

int batches_to_cycle(std::int64_t batch_size, std::int64_t image_elements) {
  constexpr double kBudgetBytes = 128.0 * 1024 * 1024;
  const double bytes = static_cast<double>(batch_size) * static_cast<double>(image_elements) * sizeof(float);
  return static_cast<int>(std::clamp(kBudgetBytes / bytes, 1.0, 4.0));
}

models::StepOptions Trainer::step_options() const {
  models::StepOptions options;
  options.compute = setup_.compute;
  options.gradient = setup_.gradient;
  options.seed = setup_.seed;
  options.profile = setup_.profile;
  options.winograd = setup_.winograd;
  options.gradient_prescale = prescale();
  return options;
}

SyntheticBatches Trainer::make_batches() const {
  const std::int64_t elements = kImageChannels * setup_.model.image_size * setup_.model.image_size;
  const int count = setup_.batches > 0 ? setup_.batches : batches_to_cycle(setup_.model.batch_size, elements);
  return {models::SyntheticSpec{setup_.seed, elements, setup_.model.classes}, setup_.model.batch_size, count,
          setup_.equal_batches ? BatchPlace{} : BatchPlace{engine_.rank(), engine_.size()}, setup_.label_rule};
}

std::vector<core::GradientInfo> Trainer::gradient_infos() const {
  std::vector<core::GradientInfo> gradients;
  for (const models::ArenaSlot& slot : step_->slots()) gradients.push_back({slot.name, slot.offset, slot.count});
  return gradients;
}

void Trainer::start() {
  for (const std::span<std::byte> state : step_->state_to_broadcast()) {
    engine_.broadcast(state.data(), state.size(), 0);
  }
  step_->state_changed();
}

// NCCL's average could replace this factor, but in fp16 NCCL averages with PreMulSum, which NVLS cannot do.
double Trainer::prescale() const {
  return setup_.gradient == DataType::kF16 && setup_.reduces() ? 1.0 / engine_.size() : 1.0;
}

models::SgdOptions Trainer::sgd(Phase phase) const {
  models::SgdOptions options = setup_.sgd;
  if (phase == Phase::kFull) {
    options.learning_rate = learning_rate_of_step(options.learning_rate, engine_.size(), steps_, setup_.rate_scaling);
    options.gradient_scale = 1.0 / engine_.size() / prescale();
    if (last_phase_ && *last_phase_ != Phase::kFull) options.momentum = 0;
  } else if (setup_.reduces()) {
    options.learning_rate = 0;
  }
  return options;
}

models::SgdOptions Trainer::begin_step_in(Phase phase) {
  if (phase != last_phase_) set_schedule(phase == Phase::kFull ? setup_.schedule : Schedule::kNone);
  const models::SgdOptions options = sgd(phase);
  last_phase_ = phase;
  if (phase == setup_.main_phase()) ++main_steps_;
  return options;
}

StepTimes Trainer::step(Phase phase, const StepProbe* probe) {
  const StepTimes times = run(begin_step_in(phase), probe);
  engine_.set_activity("between steps", steps_);
  ++steps_;
  return times;
}

std::vector<StepTimes> Trainer::steps(Phase phase, std::int64_t count) {
  std::vector<StepTimes> times;
  for (std::int64_t i = 0; i < count; ++i) times.push_back(step(phase));
  return times;
}

void Trainer::end_startup() {
  deadline_ = setup_.deadline;
  apply_deadline();
}

void Trainer::apply_deadline() { engine_.set_deadline(deadline_); }

void Trainer::skip_steps(Phase phase, std::uint64_t steps) {
  steps_ += steps;
  last_phase_ = phase;
}

std::unique_ptr<models::ReplayRecorder> Trainer::make_recorder(const std::string& source_run) const {
  models::ReplayProfile header;
  header.model = setup_.model.model;
  header.units_per_step = setup_.model.batch_size;
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
  std::vector<std::uint64_t> checksums;
  for (const models::ArenaSlot& slot : step_->slots()) {
    Checksum sum;
    for (std::size_t at = 0, bytes = slot.count * element; at < bytes; at += kChecksumBytes) {
      sum.add(gradients(slot.offset * element + at, std::min(kChecksumBytes, bytes - at)));
    }
    checksums.push_back(sum.value());
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

}  // namespace hvd::bench
