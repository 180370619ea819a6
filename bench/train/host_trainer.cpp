#include "bench/train/host_trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/store/host_facts.h"
#include "bench/store/key_lines.h"
#include "bench/world/memory.h"
#include "engine/base/assert.h"
#include "engine/base/deadline.h"
#include "engine/base/error.h"
#include "engine/base/hash.h"
#include "models/graph/autodiff.h"
#include "models/graph/cost.h"

namespace hvd::bench {
namespace {

/// Returns the error text for ranks with different layouts. `all` is indexed by rank. Each rank's message has one line
/// for the maker of the layouts, then one line per parameter.
std::string judge_layouts(const std::vector<comm::Bytes>& all, const comm::Topology& topology) {
  std::string told;
  std::size_t others = 0;
  for (std::size_t r = 1; r < all.size(); ++r) {
    const std::string first = comm::text_of(all[0]), second = comm::text_of(all[r]);
    std::string_view root = first, other = second;
    const auto place = [&](std::size_t rank, std::string_view& text) {
      return fmt::format("rank {} (host {}, {})", rank, topology.hosts.at(rank), take_line(text));
    };
    const std::string root_name = place(0, root), other_name = place(r, other);
    if (root == other) continue;
    if (told.empty()) {
      told = first_differing_line(root, other, root_name, other_name);
    } else {
      ++others;
    }
  }
  if (others > 0) told += fmt::format(", and {} more ranks differ from rank 0", others);
  return fmt::format(
      "the ranks store their parameters in different layouts: {}; gradients are summed as they lie in memory: use "
      "processors of one kind, or give all ranks one ONEDNN_MAX_CPU_ISA (mpirun -x NAME forwards it)",
      told);
}

}  // namespace

std::uint64_t StoredLayouts::hash() const { return Hasher().text(key_lines(layouts)).value(); }

StoredLayouts stored_layouts(const models::TrainStep& step) {
  StoredLayouts stored{processor().model + ", " + step.description(), {}};
  for (const models::ArenaSlot& slot : step.slots()) {
    if (!slot.layout.empty()) stored.layouts.emplace_back(slot.name, slot.layout);
  }
  return stored;
}

void require_equal_layouts(Engine& engine, const StoredLayouts& mine) {
  if (engine.size() == 1) return;
  const std::string hash = hex64(mine.hash());
  const std::vector<comm::Bytes> hashes = engine.gather(std::as_bytes(std::span(hash)));
  const bool equal =
      std::all_of(hashes.begin(), hashes.end(), [&](const comm::Bytes& theirs) { return theirs == hashes[0]; });
  const std::string differ = equal ? "" : "differ";
  if (engine.broadcast_message(std::as_bytes(std::span(differ)), 0).empty()) return;

  const std::string lines = mine.maker + "\n" + key_lines(mine.layouts);
  const std::vector<comm::Bytes> all = engine.gather(std::as_bytes(std::span(lines)));
  const std::string text = engine.rank() == 0 ? judge_layouts(all, engine.topology()) : std::string();
  throw Error(Errc::kMismatch, comm::text_of(engine.broadcast_message(std::as_bytes(std::span(text)), 0)));
}

// Passes gradients to the engine from inside backward. Nothing may throw there, so an error is kept for throw_fault().
class HostTrainer::Sink final : public models::GradientSink {
 public:
  Sink(HostTrainer& trainer, const StepProbe* probe) : trainer_(trainer) {
    if (probe != nullptr) probe_ = *probe;
  }

  void forward_ended() noexcept override {
    if (trainer_.recorder_ != nullptr) trainer_.recorder_->end_forward();
  }
  void gradient_ready(std::size_t parameter) override {
    if (fault_) return;
    try {
      if (trainer_.recorder_ != nullptr) trainer_.recorder_->gradient_ready(parameter);
      take_pieces(parameter);
      trainer_.engine_.gradient_ready(parameter);
    } catch (...) {
      fault_ = std::current_exception();
    }
  }
  void throw_fault() const {
    if (fault_) std::rethrow_exception(fault_);
  }

 private:
  void take_pieces(std::size_t parameter) {
    const std::size_t element = size_of(trainer_.step_->gradient_type());
    while (!probe_.pieces.empty() && probe_.pieces.front().parameter == parameter) {
      const GradientPiece& piece = probe_.pieces.front();
      const auto from = trainer_.gradients(piece.offset * element, piece.count * element);
      std::memcpy(probe_.local.data(), from.data(), from.size());
      probe_.local = probe_.local.subspan(from.size());
      probe_.pieces = probe_.pieces.subspan(1);
    }
  }

  HostTrainer& trainer_;
  StepProbe probe_;  // StepProbe::pieces holds only the pieces that are not copied yet
  std::exception_ptr fault_;
};

HostTrainer::HostTrainer(const Setup& setup, Engine& engine, int threads, std::function<void(const Error&)> hangs)
    : Trainer(setup, engine), watch_(engine.topology(), deadline_, std::move(hangs)) {
  models::StepOptions options = step_options();
  options.threads = threads;
  build(options, [&](std::size_t bytes) { return engine_.allocate(bytes); });
  HVD_ASSERT(step_->memory_space() == models::MemorySpace::kHost);  // this engine reduces in host memory
  require_equal_layouts(engine_, stored_layouts(*step_));
  engine_.set_gradients(gradient_infos(), step_->gradient_arena().data(), step_->gradient_type(), kReduction);
  if (setup_.schedule == Schedule::kSharded && engine_.size() > 1) take_share();
}

void HostTrainer::take_share() {
  sharded_ = step_->sharded();
  HVD_ASSERT(sharded_ != nullptr);  // every step on a CPU supports the sharded update
  follow_plan();
  const std::size_t weights = sharded_->weight_arena().size();
  const models::MemoryReport memory = step_->memory();
  std::size_t most_momentum = memory.momentum;
  for (const comm::Bytes& bytes : engine_.gather(std::as_bytes(std::span(&memory.momentum, 1)))) {
    std::size_t momentum = 0;
    std::memcpy(&momentum, bytes.data(), sizeof momentum);
    most_momentum = std::max(most_momentum, momentum);
  }
  const auto mebibytes_of = [](std::size_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  facts_.notes.push_back(fmt::format(
      "sharded: each rank holds {:.2f} MiB of gradients, {:.2f} of weights, and at most {:.2f} of momentum{}",
      mebibytes_of(memory.gradients), mebibytes_of(weights), mebibytes_of(most_momentum),
      setup_.efficiency ? " (all of it: phases solo and none update all weights)" : ""));
}

void HostTrainer::apply_deadline() {
  Trainer::apply_deadline();
  watch_.set_patience(deadline_);
}

void HostTrainer::follow_plan() {
  std::vector<models::ArenaRange> now;
  for (const comm::Range& range : engine_.shares()) now.push_back({range.begin, range.count});
  if (now == share_) return;
  share_ = std::move(now);
  // Phases solo and none update all weights, so an interleaved session keeps the momentum of all weights.
  if (!setup_.efficiency) sharded_->keep_momentum(share_);
}

void HostTrainer::set_schedule(Schedule schedule) {
  engine_.set_schedule(schedule);
  in_shares_ = schedule == Schedule::kSharded && sharded_ != nullptr;
}

void HostTrainer::update(const models::SgdOptions& sgd, StepTimes& times) {
  engine_.set_activity("update", steps_);
  const auto begin = Clock::now();
  if (!in_shares_) {
    const StepWatch::Running running(watch_, steps_, StepPart::kUpdate);
    step_->update(sgd);
    times.update = seconds(Clock::now() - begin);
    return;
  }
  follow_plan();
  {
    const StepWatch::Running running(watch_, steps_, StepPart::kUpdate);
    sharded_->update_share(sgd, share_);
  }
  const auto updated = Clock::now();
  engine_.set_activity("gathering the weights", steps_);
  engine_.gather_shares(sharded_->weight_arena().data(), sharded_->weight_type());
  const auto gathered = Clock::now();
  step_->state_changed();
  const auto end = Clock::now();
  times.update = seconds((updated - begin) + (end - gathered));
  times.exposed += seconds(gathered - updated);
  times.reduce += seconds(gathered - updated);
  if (engine_.tracing()) engine_.trace_span("gather the weights", updated, gathered);
}

void HostTrainer::build(const models::StepOptions& options, const models::ArenaAllocator& allocate) {
  if (setup_.replay) {
    std::size_t elements = 0;
    for (const auto& gradient : setup_.replay->gradients) elements += gradient.count;
    refuse_profile_too_big(static_cast<std::int64_t>(elements * size_of(setup_.gradient)),
                           engine_.topology().local_size, available_bytes());
    engine_.barrier();  // no rank allocates before all ranks of its host have read how much memory is free
    step_ = models::make_replay_step(*setup_.replay, setup_.gradient, allocate, engine_.rank());
    facts_.parameters = static_cast<std::int64_t>(elements);
    return;
  }
  models::Graph graph = models::differentiate(models::build_model(setup_.model));
  facts_ = {graph.parameter_count(), models::step_flops_per_image(graph)};
  const MemoryForecast forecast = forecast_memory(graph, options);
  // Check before anything is allocated, because a kernel that overcommits would grant memory and kill the rank later.
  refuse_if_too_big(forecast, engine_.topology().local_size, available_bytes());
  engine_.barrier();  // no rank of this host allocates while another one still reads how much memory is free
  try {
    step_ = models::make_onednn_step(std::move(graph), options, allocate);
    batches_.emplace(make_batches());
  } catch (const std::bad_alloc&) {
    // Unwinding has freed this rank's memory, so the memory that is free now is the memory that the ranks had to share.
    refuse_if_too_big(forecast, engine_.topology().local_size, available_bytes());
    throw Error(Errc::kOutOfMemory, fmt::format("batch {}: no memory for the network on {}; use a smaller --batch-size",
                                                setup_.model.batch_size,
                                                engine_.topology().hosts.at(static_cast<std::size_t>(engine_.rank()))));
  }
}

StepTimes HostTrainer::run(const models::SgdOptions& sgd, const StepProbe* probe) {
  const models::Batch batch = batches_ ? batches_->at(steps_) : models::Batch{};  // a replay needs no batch
  Sink sink(*this, probe);

  engine_.set_activity("forward and backward", steps_);
  const auto begin = Clock::now();
  if (recorder_ != nullptr) recorder_->begin_step();
  engine_.begin_step();
  StepTimes times;
  {
    const StepWatch::Running running(watch_, steps_, StepPart::kBackward);
    times.loss = step_->forward_backward(batch, sink);
  }
  if (recorder_ != nullptr) recorder_->end_backward();
  const auto computed = Clock::now();
  sink.throw_fault();
  engine_.set_activity("waiting for the last gradients", steps_);
  const StepReport report = engine_.finish_step();
  if (probe != nullptr && probe->reduced) {
    if (in_shares_) engine_.gather_shares(step_->gradient_arena().data(), step_->gradient_type());
    probe->reduced();
  }
  times.exposed = seconds(report.exposed);
  times.reduce = seconds(report.reduce);
  const auto reduced = Clock::now();
  if (recorder_ != nullptr) recorder_->begin_update();
  update(sgd, times);
  const auto end = Clock::now();
  watch_.ended(end - begin);
  if (recorder_ != nullptr) recorder_->end_update();

  if (engine_.tracing()) {
    engine_.trace_span("forward and backward", begin, computed);
    engine_.trace_span("update", reduced, end);
  }
  times.step = times.host = seconds(end - begin);
  times.compute = seconds(computed - begin);
  times.control = seconds(report.control);
  times.copy = seconds(report.copy);
  return times;
}

void HostTrainer::clear_gradients() {
  const std::span<std::byte> arena = step_->gradient_arena();
  std::memset(arena.data(), 0, arena.size());
}

double HostTrainer::reduce_bucket(const core::Bucket& bucket) {
  const std::size_t element = size_of(step_->gradient_type());
  std::byte* const data = step_->gradient_arena().data() + bucket.offset * element;
  engine_.barrier();
  const auto begin = Clock::now();
  if (sharded_ != nullptr) {
    engine_.reduce_shares(bucket);
  } else {
    engine_.all_reduce(data, bucket.count, step_->gradient_type(), kReduction);
  }
  return seconds(Clock::now() - begin);
}

std::span<const std::byte> HostTrainer::gradients(std::size_t first_byte, std::size_t bytes) {
  return step_->gradient_arena().subspan(first_byte, bytes);
}

std::int64_t HostTrainer::planned_bytes(bool processes) const {
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
