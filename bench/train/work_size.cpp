#include "bench/train/work_size.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "bench/measure/units.h"
#include "bench/measure/visits.h"
#include "engine/runtime/engine.h"

namespace hvd::bench {
namespace {

std::int64_t smallest_image(const Setup& setup) { return models::find_model(setup.model.model).minimum_image_size; }

}  // namespace

WorkSize work_of(const Setup& setup) { return {setup.model.batch_size, setup.model.image_size}; }

std::string room_advice(const Setup& setup, const ShortestSession& shortest, double step_seconds, double cap_seconds) {
  const double needed = shortest.seconds(step_seconds);
  std::string text = fmt::format(
      "{} takes {} a step here, so {} rounds of the three phases would take about {}, and --max-time is {}; ",
      setup.model.model, seconds_text(step_seconds), kFewestRounds, duration_text(needed), duration_text(cap_seconds));
  const WorkSize tried = work_of(setup);
  std::optional<WorkSize> fits;
  if (!setup.replay)
    fits = work_that_fits(tried, step_seconds, shortest.longest_step(cap_seconds), smallest_image(setup));
  if (fits) text += fmt::format("{} should fit (--fit chooses it), or ", size_options(*fits, tried));
  return text + fmt::format("give --max-time {:.0f}", std::ceil(needed));
}

WorkTrial try_work(Trainer& trainer, const Setup& setup, const ShortestSession& shortest, double cap_seconds) {
  // The first steps touch memory, load libraries and capture graphs.
  const auto steps = static_cast<std::int64_t>(trainer.settling_steps()) + 1;
  const double mine = trainer.steps(Phase::kFull, steps).back().step;
  Engine& engine = trainer.engine();
  WorkTrial trial;
  for (const comm::Bytes& theirs : engine.gather(std::as_bytes(std::span(&mine, 1)))) {
    double seconds = 0;
    std::memcpy(&seconds, theirs.data(), sizeof seconds);
    trial.step_seconds = std::max(trial.step_seconds, seconds);
  }
  const WorkSize tried = work_of(setup);
  const std::int64_t least = smallest_image(setup);
  trial.fits = work_that_fits(tried, trial.step_seconds, shortest.longest_step(cap_seconds), least)
                   .value_or(smallest_work(tried, least));
  const comm::Bytes agreed = engine.broadcast_message(std::as_bytes(std::span(&trial, 1)), 0);
  std::memcpy(&trial, agreed.data(), sizeof trial);
  return trial;
}

std::string fit_line(const Setup& fitted, double step_seconds) {
  const WorkSize size = work_of(fitted);
  return fmt::format("{} takes {} a step here: batch {}, images {} x {}", fitted.model.model,
                     seconds_text(step_seconds), size.batch, size.image, size.image);
}

}  // namespace hvd::bench
