#include "bench/session/work_size.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "bench/measure/session_plan.h"
#include "bench/measure/units.h"
#include "engine/runtime/engine.h"

namespace hvd::bench {
namespace {

constexpr double kFarTooLong = 3;  // the first step takes up to three times as long as the others

std::int64_t smallest_image(const Setup& setup) { return models::find_model(setup.model.model).minimum_image_size; }

}  // namespace

WorkSize work_of(const Setup& setup) { return {setup.model.batch_size, setup.model.image_size}; }

void take_work(const WorkSize& work, Setup& setup) {
  setup.sgd.learning_rate *= static_cast<double>(work.batch) / static_cast<double>(setup.model.batch_size);
  setup.model.batch_size = work.batch;
  setup.model.image_size = work.image;
}

std::string room_advice(const Setup& setup, const ShortestSession& shortest, double step_seconds, double cap_seconds,
                        bool fitted) {
  const double needed = shortest.seconds(step_seconds);
  std::string text = fmt::format(
      "{} takes {} a step here{}, so {} rounds of the three phases would take about {}, and --max-time is {}; ",
      setup.model.model, seconds_text(step_seconds), fitted ? ", more than when --fit timed it" : "", kMinRounds,
      duration_text(needed), duration_text(cap_seconds));
  const WorkSize tried = work_of(setup);
  std::optional<WorkSize> fits;
  if (!setup.replay)
    fits = work_that_fits(tried, step_seconds, shortest.longest_step(cap_seconds), smallest_image(setup));
  if (fits) {
    text += size_options(*fits, tried);
    Setup smaller = setup;
    take_work(*fits, smaller);
    if (fits->batch != tried.batch) text += fmt::format(" --learning-rate {:g}", smaller.sgd.learning_rate);
    text += fitted ? " should fit, or " : " should fit (--fit chooses a size that does), or ";
  }
  return text + fmt::format("give --max-time {:.0f}", std::ceil(needed));
}

WorkTrial try_work(Trainer& trainer, const Setup& setup, const ShortestSession& shortest, double cap_seconds,
                   const std::function<std::string()>& stop) {
  const WorkSize tried = work_of(setup);
  const std::int64_t least = smallest_image(setup);
  const double longest = shortest.longest_step(cap_seconds);
  Engine& engine = trainer.engine();
  WorkTrial trial;
  // The first steps touch memory, load libraries and capture graphs. They are timed too, so that no second step is
  // taken where a step is so long that it cannot fit.
  for (std::uint64_t step = 0; !trial.done; ++step) {
    const double mine = trainer.steps(Phase::kFull, 1).back().step;
    trial.step_seconds = 0;
    for (const comm::Bytes& theirs : engine.gather(std::as_bytes(std::span(&mine, 1)))) {
      double seconds = 0;
      std::memcpy(&seconds, theirs.data(), sizeof seconds);
      trial.step_seconds = std::max(trial.step_seconds, seconds);
    }
    const bool last = step >= trainer.settling_steps();
    const bool hopeless = !last && trial.step_seconds > kFarTooLong * longest;
    const double later_step = hopeless ? trial.step_seconds / kFarTooLong : trial.step_seconds;
    trial.fits = work_that_fits(tried, later_step, longest, least).value_or(smallest_work(tried, least));
    trial.cancelled = stop && !stop().empty();
    trial.done = last || trial.cancelled || (hopeless && trial.fits != tried);
    const comm::Bytes agreed = engine.broadcast_message(std::as_bytes(std::span(&trial, 1)), 0);
    std::memcpy(&trial, agreed.data(), sizeof trial);
  }
  return trial;
}

std::string fit_line(const Setup& fitted, const WorkSize& asked, double step_seconds) {
  const WorkSize size = work_of(fitted);
  return fmt::format("{} takes {} a step here with batch {}: batch {}, images {} x {}, learning rate {:g}",
                     fitted.model.model, seconds_text(step_seconds), asked.batch, size.batch, size.image, size.image,
                     fitted.sgd.learning_rate);
}

}  // namespace hvd::bench
