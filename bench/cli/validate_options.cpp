#include "bench/cli/validate_options.h"

#include <array>
#include <string>

#include "bench/cli/registrar.h"
#include "bench/measure/slow_ranks.h"
#include "engine/base/error.h"

namespace hvd::bench {

void register_validation(CLI::App& command, ValidateOptions& options) {
  command.footer(
      "Every rank trains the same batches from the same weights, without reductions. Ranks that share cores take\n"
      "turns. Checksums of gradients and weights, and the times of steps, are compared over ranks of equal hardware\n"
      "and software. On GPUs it implies --deterministic.\n\n"
      "Takes the options of training that say what is trained, on which ranks, and where results go: hvd_bench "
      "--help.\n"
      "Exit codes: 0 all ranks agree, 1 a rank differs or is slow, 3 a rank may be slow; else as in training.");
  Registrar add(command);
  add.group("How it is validated");
  add.integer("--steps", "Steps whose times are compared (default: 30); a few more come before", kMinSteps, 10000,
              options.steps);
  add.number("--threshold", "PERCENT", "By how much a rank must be slower to be called slow (default: 2)", 1e-3, 999,
             [&options](double percent) { options.threshold = percent / 100; });
}

void refuse_training_only(const CLI::App& app) {
  constexpr std::array kTrainingOnly{"replay",
                                     "replay-shrink",
                                     "record-replay",
                                     "schedule",
                                     "allreduce-dtype",
                                     "fp16-allreduce",
                                     "algorithm",
                                     "bucket-mb",
                                     "fusion-threshold-mb",
                                     "cycle-time-ms",
                                     "cache-capacity",
                                     "tune-schedule",
                                     "share-gpus",
                                     "num-warmup-batches",
                                     "num-batches-per-iter",
                                     "num-iters",
                                     "target-interval",
                                     "max-time",
                                     "efficiency",
                                     "profile",
                                     "no-check",
                                     "timeline-filename",
                                     "quiet"};
  for (const char* name : kTrainingOnly) {
    const std::string option = std::string("--") + name;
    if (app.get_option(option)->count() == 0) continue;
    throw Error(Errc::kInvalidArgument, option + ": not an option of 'hvd_bench validate', which reduces nothing and " +
                                            "trains --steps N on every rank; leave it out");
  }
}

void settle_validation(Options& options) {
  options.engine.schedule = Schedule::kNone;
  options.engine.timeline_filename.clear();  // HOROVOD_TIMELINE may have set it; writing a trace disturbs the times
  options.gpu.deterministic = true;
}

}  // namespace hvd::bench
