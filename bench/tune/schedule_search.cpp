#include "bench/tune/schedule_search.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "bench/measure/median.h"
#include "engine/base/assert.h"

namespace hvd::bench {
namespace {

/// The search tries buckets, segments, thresholds and cycle times that are smaller and larger by this factor.
constexpr std::size_t kSizeFactor = 4;
/// Numbers of thread blocks per reduction to try. By default NCCL uses up to 32 blocks (NCCL_MAX_CTAS, NCCL 2.28's
/// documentation). Each block occupies a multiprocessor that the compute could use.
constexpr std::array kCtas{4, 8, 16};

/// Algorithms that can reduce over any number of nodes. The library's own algorithm, a reference, is left out.
constexpr std::array kBetweenNodes{comm::Algorithm::kRing, comm::Algorithm::kRabenseifner,
                                   comm::Algorithm::kHierarchical};

/// Returns sizes to try instead of `bytes`. All sizes of at least `all` have the same effect.
std::vector<std::size_t> around(std::size_t bytes, std::size_t all) {
  std::vector<std::size_t> sizes;
  for (const std::size_t other : {bytes / kSizeFactor, bytes * kSizeFactor}) {
    if (std::min(other, all) != std::min(bytes, all)) sizes.push_back(other);
  }
  return sizes;
}

std::string mebibytes(std::size_t bytes) { return fmt::format("{:.9g}", static_cast<double>(bytes) / (1 << 20)); }

std::string kibibytes(std::size_t bytes) { return mebibytes(bytes * 1024); }

std::string milliseconds(std::chrono::microseconds time) {
  return fmt::format("{:.9g}", static_cast<double>(time.count()) / 1000);
}

/// Describes the setting's position of every knob. All settings of a search have the same number of descriptions.
std::vector<std::string> parts_of(const ScheduleSetting& setting) {
  if (!setting.on_gpu) {
    std::vector<std::string> parts;
    if (setting.negotiated) {
      parts.push_back(fmt::format("fusion threshold of {} MiB", mebibytes(setting.threshold_bytes)));
      parts.push_back(fmt::format("cycle time of {} ms", milliseconds(setting.cycle_time)));
    } else {
      parts.push_back(fmt::format("buckets of {} MiB", mebibytes(setting.bucket_bytes)));
    }
    parts.push_back(fmt::format("algorithm {}", comm::name(setting.algorithm)));
    parts.push_back(fmt::format("segments of {} KiB", kibibytes(setting.segment_bytes)));
    return parts;
  }
  return {setting.graph ? "CUDA graph" : "enqueued steps", setting.overlap ? "overlap" : "no overlap",
          fmt::format("buckets of {} MiB", mebibytes(setting.bucket_bytes)),
          setting.max_ctas > 0 ? fmt::format("at most {} CTAs", setting.max_ctas) : "NCCL's choice of CTAs",
          setting.register_memory ? "registered memory" : "memory not registered"};
}

/// Returns `setting` with `knob` set as in `position`.
ScheduleSetting with_position(ScheduleSetting setting, Knob knob, const ScheduleSetting& position) {
  switch (knob) {
    case Knob::kGraph: setting.graph = position.graph; break;
    case Knob::kOverlap: setting.overlap = position.overlap; break;
    case Knob::kBuckets: setting.bucket_bytes = position.bucket_bytes; break;
    case Knob::kCtas: setting.max_ctas = position.max_ctas; break;
    case Knob::kRegistration: setting.register_memory = position.register_memory; break;
    case Knob::kAlgorithm: setting.algorithm = position.algorithm; break;
    case Knob::kSegment: setting.segment_bytes = position.segment_bytes; break;
    case Knob::kThreshold: setting.threshold_bytes = position.threshold_bytes; break;
    case Knob::kCycle: setting.cycle_time = position.cycle_time; break;
  }
  return setting;
}

}  // namespace

ScheduleSetting gpu_setting(const EngineOptions& engine, const GpuOptions& gpu) {
  return {.graph = gpu.schedule.graph,
          .overlap = gpu.schedule.overlap,
          .bucket_bytes = engine.buckets.bucket_bytes,
          .max_ctas = gpu.nccl.max_ctas,
          .register_memory = gpu.nccl.register_memory};
}

ScheduleSetting cpu_setting(const EngineOptions& engine, const comm::CommOptions& comm) {
  return {.bucket_bytes = engine.buckets.bucket_bytes,
          .on_gpu = false,
          .negotiated = engine.schedule == Schedule::kNegotiated,
          .algorithm = comm.algorithm,
          .segment_bytes = comm.segment_bytes,
          .threshold_bytes = engine.negotiation.fusion.threshold_bytes,
          .cycle_time = engine.cycle_time};
}

void put(const ScheduleSetting& setting, EngineOptions& engine, GpuOptions& gpu, comm::CommOptions& comm) {
  engine.buckets.bucket_bytes = setting.bucket_bytes;
  engine.buckets.first_bucket_bytes = std::min(engine.buckets.first_bucket_bytes, setting.bucket_bytes);
  if (!setting.on_gpu) {
    comm.algorithm = setting.algorithm;
    comm.segment_bytes = setting.segment_bytes;
    engine.negotiation.fusion.threshold_bytes = setting.threshold_bytes;
    engine.cycle_time = setting.cycle_time;
    return;
  }
  gpu.schedule.graph = setting.graph;
  gpu.schedule.overlap = setting.overlap;
  gpu.nccl.max_ctas = setting.max_ctas;
  gpu.nccl.register_memory = setting.register_memory;
}

std::string setting_text(const ScheduleSetting& setting) {
  return fmt::format("{}", fmt::join(parts_of(setting), ", "));
}

std::string setting_options(const ScheduleSetting& setting) {
  const ScheduleSetting defaults = setting.on_gpu ? gpu_setting({}, {}) : cpu_setting({}, {});
  std::string text;
  const auto add = [&](bool needed, const std::string& option) {
    if (needed) text += (text.empty() ? "" : " ") + option;
  };
  if (!setting.on_gpu) {
    add(setting.bucket_bytes != defaults.bucket_bytes, "--bucket-mb " + mebibytes(setting.bucket_bytes));
    add(setting.threshold_bytes != defaults.threshold_bytes,
        "--fusion-threshold-mb " + mebibytes(setting.threshold_bytes));
    add(setting.cycle_time != defaults.cycle_time, "--cycle-time-ms " + milliseconds(setting.cycle_time));
    add(setting.algorithm != defaults.algorithm, "--algorithm " + std::string(comm::name(setting.algorithm)));
    add(setting.segment_bytes != defaults.segment_bytes, "--segment-kb " + kibibytes(setting.segment_bytes));
    return text;
  }
  add(!setting.graph, "--no-cuda-graph");
  add(!setting.overlap, "--no-overlap");
  add(setting.bucket_bytes != defaults.bucket_bytes, "--bucket-mb " + mebibytes(setting.bucket_bytes));
  add(setting.max_ctas > 0, "--nccl-max-ctas " + std::to_string(setting.max_ctas));
  add(!setting.register_memory, "--no-nccl-registration");
  return text;
}

std::string setting_change(const ScheduleSetting& from, const ScheduleSetting& to) {
  const auto before = parts_of(from);
  const auto after = parts_of(to);
  std::string text;
  for (std::size_t i = 0; i < after.size(); ++i) {
    if (after[i] != before[i]) text += (text.empty() ? "" : ", ") + after[i];
  }
  return text;
}

std::vector<ScheduleSetting> alternatives(const ScheduleSetting& from, Knob knob, std::size_t gradient_bytes) {
  std::vector<ScheduleSetting> others;
  const auto other = [&]() -> ScheduleSetting& { return others.emplace_back(from); };
  switch (knob) {
    case Knob::kGraph: other().graph = !from.graph; break;
    case Knob::kOverlap: other().overlap = !from.overlap; break;
    case Knob::kRegistration: other().register_memory = !from.register_memory; break;
    case Knob::kBuckets:
      for (const std::size_t bytes : around(from.bucket_bytes, gradient_bytes)) other().bucket_bytes = bytes;
      break;
    case Knob::kThreshold:
      for (const std::size_t bytes : around(from.threshold_bytes, gradient_bytes)) other().threshold_bytes = bytes;
      break;
    case Knob::kSegment:
      for (const std::size_t bytes : around(from.segment_bytes, gradient_bytes)) other().segment_bytes = bytes;
      break;
    case Knob::kCycle:
      for (const auto time : {from.cycle_time / kSizeFactor, from.cycle_time * kSizeFactor}) {
        if (time != from.cycle_time) other().cycle_time = time;
      }
      break;
    case Knob::kAlgorithm:
      for (const comm::Algorithm algorithm : kBetweenNodes) {
        if (algorithm != from.algorithm) other().algorithm = algorithm;
      }
      break;
    case Knob::kCtas:
      for (const int ctas : kCtas) {
        if (ctas != from.max_ctas) other().max_ctas = ctas;
      }
      break;
  }
  return others;
}

std::optional<std::size_t> replacement(const std::vector<Visits>& settings) {
  HVD_ASSERT(!settings.empty());
  std::size_t best = 0;
  for (std::size_t i = 1; i < settings.size(); ++i) {
    if (median(settings[i]) < median(settings[best])) best = i;
  }
  if (best == 0) return std::nullopt;
  const bool apart = *std::max_element(settings[best].begin(), settings[best].end()) <
                     *std::min_element(settings[0].begin(), settings[0].end());
  const bool enough = median(settings[best]) < (1 - kMinGain) * median(settings[0]);
  return apart && enough ? std::optional(best) : std::nullopt;
}

ScheduleSearch::ScheduleSearch(const ScheduleSetting& start, const std::vector<Knob>& knobs, std::size_t gradient_bytes)
    : gradient_bytes_(gradient_bytes), chosen_(start), start_(start) {
  for (const Knob knob : knobs) knobs_.push_back({.knob = knob});
  begin_knob();
}

std::vector<ScheduleSetting> ScheduleSearch::others(Knob knob) const {
  std::vector<ScheduleSetting> positions = alternatives(start_, knob, gradient_bytes_);
  positions.insert(positions.begin(), start_);
  std::vector<ScheduleSetting> others;
  for (const ScheduleSetting& position : positions) {
    const ScheduleSetting other = with_position(chosen_, knob, position);
    if (other != chosen_) others.push_back(other);
  }
  return others;
}

void ScheduleSearch::begin_knob() {
  visit_ = 0;
  settings_of_knob_.clear();
  for (std::size_t turns = 0; turns < kMaxTurns; ++turns) {
    for (current_knob_ = 0; current_knob_ < knobs_.size(); ++current_knob_) {
      if (!knobs_[current_knob_].due || knobs_[current_knob_].turns != turns) continue;
      const std::vector<ScheduleSetting> settings = others(knobs_[current_knob_].knob);
      if (settings.empty()) {
        knobs_[current_knob_].due = false;
        continue;
      }
      settings_of_knob_.push_back({.setting = chosen_, .seconds = {}});
      for (const ScheduleSetting& other : settings) settings_of_knob_.push_back({.setting = other, .seconds = {}});
      return;
    }
  }
  confirm();
}

/// Each gain was measured from a different setting, so the search finally compares its result with the start directly.
void ScheduleSearch::confirm() {
  if (confirming_ || gains_.size() < 2) return;
  confirming_ = true;
  settings_of_knob_.push_back({.setting = start_, .seconds = {}});
  settings_of_knob_.push_back({.setting = chosen_, .seconds = {}});
}

std::size_t ScheduleSearch::visits_of_new_knob() const { return visit_ == 0 ? kRounds * settings_of_knob_.size() : 0; }

void ScheduleSearch::leave_out_the_rest() {
  if (confirming_ || settings_of_knob_.empty()) return;
  for (Turn& turn : knobs_) {
    left_out_ = left_out_ || (turn.due && turn.turns == 0);
    turn.due = false;
  }
  begin_knob();
}

std::size_t ScheduleSearch::place() const {
  const std::size_t place = visit_ % settings_of_knob_.size();
  return visit_ / settings_of_knob_.size() % 2 == 0 ? place : settings_of_knob_.size() - 1 - place;
}

const ScheduleSetting* ScheduleSearch::next() const {
  return settings_of_knob_.empty() ? nullptr : &settings_of_knob_[place()].setting;
}

void ScheduleSearch::add(double seconds) {
  HVD_ASSERT(next() != nullptr);
  settings_of_knob_[place()].seconds.push_back(seconds);
  ++visit_;
  ++visits_;
  if (visit_ == kRounds * settings_of_knob_.size()) decide();
}

void ScheduleSearch::decide() {
  std::vector<Visits> seconds;
  for (const Trial& trial : settings_of_knob_) seconds.push_back(trial.seconds);
  if (confirming_) {
    const bool slower = median(seconds[1]) >= median(seconds[0]);
    if (slower) {
      chosen_ = start_;
      gains_.clear();
    }
    settings_of_knob_[slower ? 0 : 1].chosen = true;
    trials_.insert(trials_.end(), settings_of_knob_.begin(), settings_of_knob_.end());
    settings_of_knob_.clear();
    visit_ = 0;
    return;
  }
  const std::size_t kept = replacement(seconds).value_or(0);
  settings_of_knob_[kept].chosen = true;
  if (kept != 0) {
    for (Turn& turn : knobs_) turn.due = true;  // the best positions of other knobs may have changed
    chosen_ = settings_of_knob_[kept].setting;
    gains_.push_back({.from = settings_of_knob_[0].setting,
                      .to = chosen_,
                      .from_seconds = median(seconds[0]),
                      .to_seconds = median(seconds[kept])});
  }
  trials_.insert(trials_.end(), settings_of_knob_.begin(), settings_of_knob_.end());
  knobs_[current_knob_].due = false;
  ++knobs_[current_knob_].turns;
  begin_knob();
}

std::size_t ScheduleSearch::visits_left() const {
  std::size_t left = kRounds * settings_of_knob_.size() - visit_;
  for (std::size_t k = 0; k < knobs_.size(); ++k) {
    if (k == current_knob_ || !knobs_[k].due || knobs_[k].turns == kMaxTurns) continue;
    const std::size_t settings = others(knobs_[k].knob).size();
    if (settings > 0) left += kRounds * (1 + settings);
  }
  return left;
}

}  // namespace hvd::bench
