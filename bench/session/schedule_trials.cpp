#include "bench/session/schedule_trials.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <utility>

#include "bench/measure/median.h"
#include "bench/session/message.h"
#include "bench/world/settings.h"
#include "engine/base/deadline.h"
#include "engine/base/error.h"

namespace hvd::bench {
namespace {

/// Limit of a search on CPUs, so that a cluster's ranks do not search for longer than they train.
constexpr double kLimitSeconds = 60;
constexpr std::int64_t kMinTrialSteps = 3;   // least number of timed steps in a visit
constexpr std::int64_t kMaxTrialSteps = 50;  // largest number of timed steps in a visit
constexpr double kTrialSeconds = 0.5;        // seconds that a visit should take, within the two limits above

/// Returns the provenance key "gpu.schedule.chosen" or "gpu.schedule.tried", on CPUs without "gpu.".
std::string key_of(const ScheduleSetting& setting, const char* what) {
  return fmt::format("{}schedule.{}", setting.on_gpu ? "gpu." : "", what);
}

/// Message from rank 0 to all ranks. With kStop, the reason follows as text.
struct Order {
  enum class Kind : std::uint8_t { kTry, kTake, kStop };
  Kind kind = Kind::kTry;
  ScheduleSetting setting;
  std::int64_t steps = 0;
};

std::string milliseconds_text(double seconds) { return fmt::format("{:.3f} ms", 1e3 * seconds); }

/// One rank's part in the search.
class Rank {
 public:
  Rank(Engine& engine, const TrialBench& bench) : engine_(engine), bench_(bench) {}

  /// On rank 0: all ranks train. Returns the median over steps of the slowest rank's seconds. Errors: interrupted.
  double visit(const ScheduleSetting& setting, std::int64_t steps) {
    send({.kind = Order::Kind::kTry, .setting = setting, .steps = steps}, {});
    std::vector<Answer> answers;
    std::vector<std::vector<double>> ranks;
    for (const comm::Bytes& bytes : engine_.gather(encode(carry_out(setting, steps)))) {
      ranks.push_back(answers.emplace_back(decode_answer(bytes)).samples.step);
    }
    std::string stopped = stop_text(answers, engine_.topology().hosts);
    if (stopped.empty()) return median(max_over_ranks(ranks));
    stopped += " while schedules were tried";
    send({.kind = Order::Kind::kStop, .setting = setting}, stopped);
    throw AgreedError(Errc::kInterrupted, stopped);
  }
  /// Called on rank 0: ends the search with `setting` on all ranks.
  void take(const ScheduleSetting& setting) { send({.kind = Order::Kind::kTake, .setting = setting}, {}); }

  /// Called on the other ranks: follows rank 0's orders. Returns the setting that rank 0 takes in the end.
  ScheduleSetting follow() {
    for (;;) {
      const comm::Bytes bytes = engine_.broadcast_message({}, 0);
      Order order;
      std::memcpy(&order, bytes.data(), sizeof order);
      if (order.kind == Order::Kind::kTake) return order.setting;
      if (order.kind == Order::Kind::kStop) {
        throw AgreedError(Errc::kInterrupted, comm::text_of(std::span(bytes).subspan(sizeof order)));
      }
      engine_.gather(encode(carry_out(order.setting, order.steps)));
    }
  }

 private:
  void send(const Order& order, const std::string& text) {
    comm::Bytes bytes(sizeof order + text.size());
    std::memcpy(bytes.data(), &order, sizeof order);
    std::memcpy(bytes.data() + sizeof order, text.data(), text.size());
    engine_.broadcast_message(bytes, 0);
  }

  Answer carry_out(const ScheduleSetting& setting, std::int64_t steps) {
    Answer answer;
    try {
      answer.samples.step = bench_.time_steps(setting, steps);
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("--tune-schedule, trying {}: {}", setting_text(setting), error.what()));
    }
    if (bench_.stop_requested) answer.signal = bench_.stop_requested();
    return answer;
  }

  Engine& engine_;
  const TrialBench& bench_;
};

ScheduleChoice described(const ScheduleSearch& search, const ScheduleSetting& start, double seconds) {
  ScheduleChoice choice{.setting = search.chosen(), .provenance = {}, .notes = {}};
  std::string tried;
  for (const ScheduleSearch::Trial& trial : search.trials()) {
    tried += fmt::format("{}{}: {}{}", tried.empty() ? "" : "; ", setting_text(trial.setting),
                         milliseconds_text(median(trial.seconds)), trial.chosen ? " (kept)" : "");
  }
  choice.provenance[key_of(start, "chosen")] = {setting_text(choice.setting), false};
  choice.provenance[key_of(start, "tried")] = {tried.empty() ? "nothing: every knob was given or cannot matter" : tried,
                                               false};
  std::string gains;
  for (const ScheduleSearch::Gain& gain : search.gains()) {
    gains +=
        fmt::format("{}{} ({} a step instead of {})", gains.empty() ? "" : "; ", setting_change(gain.from, gain.to),
                    milliseconds_text(gain.to_seconds), milliseconds_text(gain.from_seconds));
  }
  if (gains.empty()) {
    gains = "nothing clearly faster than " + setting_text(start);
  } else if (const std::string options = setting_options(choice.setting); !options.empty()) {
    gains += ", which is to say " + options;
  }
  choice.notes.push_back(
      fmt::format("--tune-schedule found {}, in {} visits to {} settings that took {} s{}", gains, search.visits(),
                  search.trials().size(), std::llround(seconds),
                  search.left_something_out() ? "; it ended there, so not every knob was turned" : ""));
  return choice;
}

}  // namespace

ScheduleChoice run_search(Engine& engine, ScheduleSearch search, const TrialBench& bench) {
  Rank rank(engine, bench);
  if (engine.rank() != 0) return {.setting = rank.follow(), .provenance = {}, .notes = {}};
  const ScheduleSetting start = search.chosen();
  const auto begin = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  std::int64_t steps = 0;
  while (const ScheduleSetting* const setting = search.next()) {
    if (steps == 0) {
      const double step = rank.visit(*setting, kMinTrialSteps);
      steps =
          std::clamp<std::int64_t>(std::llround(kTrialSeconds / std::max(step, 1e-9)), kMinTrialSteps, kMaxTrialSteps);
      rank.visit(*setting, steps);  // not recorded: clocks rise and libraries load during this visit
    }
    const double step = rank.visit(*setting, steps);
    search.add(step);
    const double a_visit = elapsed() / static_cast<double>(search.visits());
    const double next_knob = a_visit * static_cast<double>(search.visits_of_new_knob());
    if (bench.limit_seconds > 0 && next_knob > 0 && elapsed() + next_knob > bench.limit_seconds) {
      search.leave_out_the_rest();
    }
    if (bench.progress) {
      const double per_visit = elapsed() / static_cast<double>(search.visits());
      bench.progress(step, per_visit * static_cast<double>(search.visits_left()));
    }
  }
  rank.take(search.chosen());
  return described(search, start, elapsed());
}

std::optional<ScheduleChoice> recall_schedule(Engine& engine, const std::string& folder,
                                              const ScheduleCase& conditions) {
  if (folder.empty()) return std::nullopt;
  std::optional<ScheduleSetting> kept;
  if (engine.rank() == 0) kept = kept_schedule(folder, conditions);
  const std::span<const std::byte> mine = kept ? std::as_bytes(std::span(&*kept, 1)) : std::span<const std::byte>{};
  const comm::Bytes bytes = engine.broadcast_message(mine, 0);
  if (bytes.empty()) return std::nullopt;
  ScheduleChoice choice;
  std::memcpy(&choice.setting, bytes.data(), sizeof choice.setting);
  if (engine.rank() != 0) return choice;
  const std::string path = schedule_path(folder, conditions);
  choice.provenance[key_of(choice.setting, "chosen")] = {setting_text(choice.setting), false};
  choice.provenance[key_of(choice.setting, "tried")] = {fmt::format("nothing: {} has it", path), false};
  choice.notes.push_back(
      fmt::format("--tune-schedule took what an earlier search kept in {}: {}; remove that file to search again", path,
                  setting_text(choice.setting)));
  return choice;
}

void remember_schedule(const std::string& folder, const ScheduleCase& conditions, ScheduleChoice& choice) {
  if (folder.empty()) return;
  try {
    keep_schedule(folder, conditions, choice.setting);
  } catch (const Error& error) {
    choice.notes.push_back("what --tune-schedule found is not kept: " + std::string(error.what()));
  }
}

ScheduleChoice try_schedules(RankParts& parts, Trainer& trainer, const std::function<void(const Progress&)>& progress,
                             const std::function<std::string()>& stop_requested) {
  TrialBench bench;
  bench.time_steps = [&](const ScheduleSetting& setting, std::int64_t steps) {
    parts.apply(setting);
    const auto settling = static_cast<std::int64_t>(trainer.settling_steps());
    const std::vector<StepTimes> times = trainer.steps(Phase::kFull, settling + steps);
    std::vector<double> seconds;
    for (auto i = static_cast<std::size_t>(settling); i < times.size(); ++i) seconds.push_back(times[i].step);
    return seconds;
  };
  bench.stop_requested = stop_requested;
  if (!parts.on_gpu()) bench.limit_seconds = kLimitSeconds;
  const double images = static_cast<double>(parts.images_per_step());
  bench.progress = [&](double step_seconds, double seconds_left) {
    if (!progress) return;
    progress({.stage = "trying schedules",
              .phase = {},
              .steps = static_cast<std::int64_t>(trainer.steps_done()),
              .images_per_second = images / step_seconds,
              .interval = 0,
              .seconds_left = seconds_left,
              .unit = std::string(parts.unit())});
  };
  const std::size_t gradient_bytes = trainer.train_step().memory().gradients;
  return run_search(parts.engine(), ScheduleSearch(parts.setting(), parts.knobs(), gradient_bytes), bench);
}

}  // namespace hvd::bench
