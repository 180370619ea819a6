#include "bench/train/device_trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "bench/world/settings.h"
#include "engine/base/deadline.h"
#include "engine/base/error.h"
#include "models/graph/autodiff.h"
#include "models/graph/cost.h"
#include "models/replay/replay.h"

namespace hvd::bench {
namespace {

/// Collective. Returns the texts of all ranks, [rank], on every rank.
std::vector<std::string> exchange_texts(Engine& engine, const std::string& mine) {
  std::vector<std::byte> packed;  // of each rank: the length of its text, and its text
  const auto append = [&packed](std::span<const std::byte> bytes) {
    packed.insert(packed.end(), bytes.begin(), bytes.end());
  };
  for (const comm::Bytes& text : engine.gather(std::as_bytes(std::span(mine)))) {
    const std::uint64_t length = text.size();
    append(std::as_bytes(std::span(&length, 1)));
    append(text);
  }
  packed = engine.broadcast_message(packed, 0);
  std::vector<std::string> texts;
  for (std::span<const std::byte> rest = packed; !rest.empty();) {
    std::uint64_t length = 0;
    std::memcpy(&length, rest.data(), sizeof length);
    texts.push_back(comm::text_of(rest.subspan(sizeof length, length)));
    rest = rest.subspan(sizeof length + length);
  }
  return texts;
}

}  // namespace

static_assert(models::DeviceStep::kLossPlaces >= kStepsInFlight, "a step's slot is its loss's place");

// The sink is called for each gradient while a step is enqueued or captured. A capture runs the step once for each
// DeviceEngine::slot(). The sink's methods must not throw, so the sink keeps an error for throw_fault().
class DeviceTrainer::Sink final : public models::GradientSink {
 public:
  Sink(DeviceTrainer& trainer, const StepProbe* probe) : trainer_(trainer), probe_(probe) {
    if (trainer.recorder_ != nullptr) submit_.assign(trainer.step_->slots().size(), 0);
  }

  void begin() {
    if (probe_ != nullptr) pieces_ = probe_->pieces;
    copied_ = 0;
    begin_ = Clock::now();
  }

  void gradient_ready(std::size_t parameter) override {
    if (fault_) return;
    try {
      const gpu::StreamView stream = trainer_.on_device_->compute_stream();
      if (!submit_.empty()) {
        submit_.at(parameter) = seconds(Clock::now() - begin_);
        trainer_.runtime_.record_outside(trainer_.ready_.at(parameter), stream);
      }
      copy_pieces(parameter, stream);
      trainer_.device_.gradient_ready(parameter);
    } catch (...) {
      fault_ = std::current_exception();
    }
  }
  void throw_fault() const {
    if (fault_) std::rethrow_exception(fault_);
  }
  [[nodiscard]] const std::vector<double>& submit() const { return submit_; }

 private:
  /// Call this before the gradient is submitted for reduction, so that the reduction waits for these copies.
  void copy_pieces(std::size_t parameter, gpu::StreamView stream) {
    const std::size_t element = size_of(trainer_.step_->gradient_type());
    for (; !pieces_.empty() && pieces_.front().parameter == parameter; pieces_ = pieces_.subspan(1)) {
      const GradientPiece& piece = pieces_.front();
      const auto from = trainer_.step_->gradient_arena().subspan(piece.offset * element, piece.count * element);
      trainer_.runtime_.copy(&trainer_.host_buffer_->bytes[copied_], from.data(), from.size(), stream);
      copied_ += from.size();
    }
  }

  DeviceTrainer& trainer_;
  const StepProbe* probe_;
  Clock::time_point begin_;
  std::span<const GradientPiece> pieces_;  // pieces that are not copied yet
  std::size_t copied_ = 0;
  std::vector<double> submit_;  // [parameter], host time of the submission in seconds; empty: not recorded
  std::exception_ptr fault_;
};

DeviceTrainer::DeviceTrainer(const Setup& setup, DeviceEngine& device, gpu::GpuRuntime& runtime, GpuBackend& backend,
                             int threads)
    : Trainer(setup, device.engine()), device_(device), runtime_(runtime) {
  runtime_.make_current();
  std::vector<gpu::Event*> timed{&reduce_begin_, &reduce_end_};
  for (Marks& m : marks_) timed.insert(timed.end(), {&m.begin, &m.backward_end, &m.update_begin, &m.update_end});
  for (gpu::Event* event : timed) *event = runtime_.make_event(gpu::Timing::kOn);
  const gpu::MemoryState before = runtime_.memory();
  used_before_ = static_cast<std::int64_t>(before.total_bytes - before.free_bytes);
  setup_.replay ? build_replay() : build(backend, threads);
  device_.set_gradients(gradient_infos(), step_->gradient_arena().data(), step_->gradient_type(), kReduction);
  for (std::size_t i = 0; i < step_->slots().size(); ++i) ready_.push_back(runtime_.make_event(gpu::Timing::kOn));
  if (!setup_.replay) batches_.emplace(make_batches());
  loaded_.resize(batches_ ? static_cast<std::size_t>(batches_->count()) : 1);
  wait(on_device_->compute_stream(), "the weights");  // start() sends the weights to the other ranks
}

DeviceTrainer::~DeviceTrainer() {
  device_.drop_graphs();  // first, because graphs use events and memory that are destroyed next
  if (!reducing_) return;
  device_.plane().abort();  // otherwise the reduction would wait for its peers for ever
  runtime_.drain(device_.plane().stream());
}

void DeviceTrainer::build(GpuBackend& backend, int threads) {
  models::Graph graph = models::differentiate(models::build_model(setup_.model));
  const GpuOptions& gpu = setup_.gpu;
  facts_ = {graph.parameter_count(), models::step_flops_per_image(graph), {}};
  const std::string name = runtime_.device().name;
  if (gpu.nccl.share_gpus) {
    facts_.notes.emplace_back("no bound: the data sheet is of a GPU, not of a share of one");
  } else if (bound_ = step_bound(graph, name, setup_.compute, gpu.tf32); !bound_) {
    facts_.notes.push_back(
        fmt::format("no bound: there is no data sheet here of {} in {}", name, setup_.compute_name()));
  }
  const auto exchange = [this](const std::string& mine) { return exchange_texts(engine_, mine); };
  const models::CudnnOptions cudnn{.tf32 = gpu.tf32,
                                   .fusion = {.level = gpu.fusion_level},
                                   .deterministic = gpu.deterministic,
                                   .loss_scale = gpu.loss_scale,
                                   .tune = gpu.tune,
                                   .winners_folder = gpu.tuning_folder,
                                   .exchange = engine_.size() > 1 ? models::ExchangeTexts(exchange) : nullptr,
                                   .rank = engine_.rank()};
  models::StepOptions options = step_options();
  options.threads = threads;
  try {
    auto step = backend.make_step(std::move(graph), options, cudnn, runtime_,
                                  [this](std::size_t bytes) { return engine_.allocate(bytes); });
    on_device_ = step.get();
    step_ = std::move(step);
    engines_ = on_device_->engines();
    for (std::string& note : on_device_->notes()) facts_.notes.push_back(std::move(note));
  } catch (const models::ErrorOfAllRanks& error) {
    throw AgreedError(error.code(), "host " + engine_.topology().hosts.at(error.rank()) + ", " + error.what());
  } catch (const Error& error) {
    if (error.code() != Errc::kOutOfMemory) throw;
    throw out_of_memory(error);
  }
}

Error DeviceTrainer::out_of_memory(const Error& error) const {
  const auto rank = static_cast<std::size_t>(engine_.rank());
  return {Errc::kOutOfMemory, fmt::format("rank {} (host {}, {}): {}", rank, engine_.topology().hosts.at(rank),
                                          runtime_.label(), error.what())};
}

void DeviceTrainer::build_replay() {
  try {
    auto step = models::make_device_replay_step(
        *setup_.replay, setup_.gradient, runtime_, [this](std::size_t bytes) { return engine_.allocate(bytes); },
        engine_.rank(), [this] { return !device_.graphs(); });
    on_device_ = step.get();
    step_ = std::move(step);
  } catch (const Error& error) {
    if (error.code() != Errc::kOutOfMemory) throw;
    throw out_of_memory(error);
  }
  for (const models::ArenaSlot& slot : step_->slots()) facts_.parameters += static_cast<std::int64_t>(slot.count);
}

void DeviceTrainer::forward_backward(Sink& sink) {
  const gpu::StreamView stream = on_device_->compute_stream();
  const Marks& marks = marks_.at(device_.slot());
  sink.begin();
  on_device_->keep_loss_in(device_.slot());
  runtime_.record_outside(marks.begin, stream);
  on_device_->enqueue_forward_backward(sink);
  runtime_.record_outside(marks.backward_end, stream);
  sink.throw_fault();
}

void DeviceTrainer::update() {
  const gpu::StreamView stream = on_device_->compute_stream();
  const Marks& marks = marks_.at(device_.slot());
  runtime_.record_outside(marks.update_begin, stream);
  on_device_->enqueue_update();
  runtime_.record_outside(marks.update_end, stream);
}

template <class Body>
void DeviceTrainer::abandon_steps_on_error(Body&& body) {
  last_end_ = Clock::now();
  try {
    body();
  } catch (const std::exception& error) {
    device_.abandon(error.what());
    throw;
  }
}

void DeviceTrainer::launch(const models::SgdOptions& sgd, Sink& sink) {
  on_device_->load(batches_ ? batches_->at(steps_) : models::Batch{}, deadline_.from_now());
  loaded_[steps_ % loaded_.size()] = true;
  on_device_->set_sgd(sgd);
  device_.run_step(on_device_->compute_stream(), {[&] { forward_backward(sink); }, [&] { update(); }});
}

DeviceTrainer::Finished DeviceTrainer::finish() {
  const DeviceReport report = device_.finish_step();
  const auto begin = std::exchange(last_end_, Clock::now());
  const Marks& marks = marks_.at(report.slot);
  StepTimes times;
  times.step = seconds(report.step);
  times.compute = between(marks.begin, marks.backward_end);
  times.exposed = seconds(report.exposed);
  times.reduce = seconds(report.reduce);
  times.control = seconds(report.engine.control);
  times.copy = seconds(report.engine.copy);
  times.update = between(marks.update_begin, marks.update_end);
  times.host = seconds(last_end_ - begin);
  times.launch = seconds(report.enqueue);
  times.loss = on_device_->loss(report.slot);
  times.ahead = report.ahead;
  if (report.ahead) ++steps_ahead_;
  if (engine_.tracing()) engine_.trace_span(report.graph ? "step (one graph)" : "step", begin, last_end_);
  return {times, report};
}

StepTimes DeviceTrainer::run(const models::SgdOptions& sgd, const StepProbe* probe) {
  const bool copies = probe != nullptr && !probe->pieces.empty();
  if (copies) {
    device_.drop_graphs();  // this step enqueues copies that other steps do not have
    host_buffer(probe->local.size());
  }
  engine_.set_activity("a step on the GPU", steps_);
  StepTimes times;
  abandon_steps_on_error([&] {
    Sink sink(*this, probe);
    launch(sgd, sink);
    const Finished finished = finish();
    times = finished.times;
    if (recorder_ != nullptr) record_times(sink, finished.report);
  });
  if (copies) {
    std::memcpy(probe->local.data(), host_buffer_->bytes.data(), probe->local.size());
    device_.drop_graphs();
  }
  if (probe != nullptr && probe->reduced) probe->reduced();  // the update does not change the gradient arena
  return times;
}

bool DeviceTrainer::may_run_ahead() const { return device_.may_run_ahead() && loaded_[steps_ % loaded_.size()]; }

void DeviceTrainer::skip_steps(Phase phase, std::uint64_t steps) {
  Trainer::skip_steps(phase, steps);
  device_.skip_steps(steps);
}

std::uint64_t DeviceTrainer::settling_steps() const {
  return static_cast<std::uint64_t>(setup_.gpu.schedule.settling_steps());
}

void DeviceTrainer::apply_deadline() { device_.set_deadline(deadline_); }

std::vector<StepTimes> DeviceTrainer::steps(Phase phase, std::int64_t count) {
  // A recorder needs ready_, the only set of events, so recorded steps run one after another.
  if (recorder_ != nullptr) return Trainer::steps(phase, count);
  std::vector<StepTimes> times;
  abandon_steps_on_error([&] {
    const std::uint64_t first = steps_;
    for (std::int64_t launched = 0; launched < count || device_.in_flight() > 0;) {
      engine_.set_activity("a step on the GPU", first + times.size());
      if (launched < count && (device_.in_flight() == 0 || may_run_ahead())) {
        Sink sink(*this, nullptr);
        launch(begin_step_in(phase), sink);
        ++launched;
        ++steps_;
      } else {
        times.push_back(finish().times);
      }
    }
  });
  engine_.set_activity("between steps", steps_);
  return times;
}

void DeviceTrainer::record_times(const Sink& sink, const DeviceReport& report) {
  const Marks& marks = marks_.at(report.slot);
  models::ReplayRecorder::Step step;
  step.submit = sink.submit();
  // A graph launch submits all gradients at once. The sink's times are those of the capture, so replace them by 0.
  if (report.graph) std::fill(step.submit.begin(), step.submit.end(), 0);
  for (const gpu::Event& event : ready_) step.ready.push_back(between(marks.begin, event));
  step.backward_end = between(marks.begin, marks.backward_end);
  step.update = between(marks.update_begin, marks.update_end);
  recorder_->add(step);
}

double DeviceTrainer::between(const gpu::Event& begin, const gpu::Event& end) {
  return seconds(runtime_.elapsed(begin, end));
}

void DeviceTrainer::wait(gpu::StreamView stream, const char* what) {
  runtime_.synchronize(stream, deadline_.from_now(), what);
}

void DeviceTrainer::clear_gradients() {
  const gpu::StreamView stream = on_device_->compute_stream();
  const std::span<std::byte> arena = step_->gradient_arena();
  runtime_.fill(arena.data(), std::byte{0}, arena.size(), stream);
  wait(stream, "zeroing the gradients");
}

double DeviceTrainer::reduce_bucket(const core::Bucket& bucket) {
  const std::size_t element = size_of(step_->gradient_type());
  const Deadline deadline = deadline_.from_now();
  comm::DevicePlane& plane = device_.plane();
  std::byte* const data = step_->gradient_arena().data() + bucket.offset * element;
  const auto all_reduce = [&](std::size_t count) {
    plane.all_reduce(data, count, step_->gradient_type(), kReduction, deadline);
  };
  engine_.barrier();
  reducing_ = true;
  // NCCL may allocate memory at the first reduction of a size, which may wait for the GPU, so both sizes run once
  // before the stream is held.
  all_reduce(1);
  all_reduce(bucket.count);
  gpu::Hold hold(runtime_, plane.stream());
  all_reduce(1);  // makes every GPU wait for all others before the clock starts
  runtime_.record(reduce_begin_, plane.stream());
  all_reduce(bucket.count);
  runtime_.record(reduce_end_, plane.stream());
  hold.release();
  runtime_.synchronize(reduce_end_, deadline, "one bucket's reduction", [&] { plane.check(); });
  reducing_ = false;
  return between(reduce_begin_, reduce_end_);
}

std::span<std::byte> DeviceTrainer::host_buffer(std::size_t bytes) {
  if (!host_buffer_ || host_buffer_->bytes.size() < bytes) {
    host_buffer_.reset();
    host_buffer_ = runtime_.allocate_pinned(bytes, "gradients to look at");
  }
  return host_buffer_->bytes.first(bytes);
}

std::span<const std::byte> DeviceTrainer::gradients(std::size_t first_byte, std::size_t bytes) {
  const std::span<std::byte> here = host_buffer(bytes);
  const gpu::StreamView stream = on_device_->compute_stream();
  runtime_.copy(here.data(), step_->gradient_arena().data() + first_byte, bytes, stream);
  wait(stream, "gradients to look at");
  return here;
}

std::int64_t DeviceTrainer::planned_bytes(bool /*processes*/) const {
  const std::size_t arena = step_->memory().gradients;
  std::size_t bytes = step_->memory().total();
  if (setup_.schedule == Schedule::kNegotiated && engine_.size() > 1) {
    bytes += std::min(setup_.fusion_threshold_bytes, arena);
  }
  return static_cast<std::int64_t>(bytes);
}

MemoryUse DeviceTrainer::memory_use() {
  const gpu::MemoryState now = runtime_.memory();
  return {.before = used_before_, .now = static_cast<std::int64_t>(now.total_bytes - now.free_bytes)};
}

}  // namespace hvd::bench
