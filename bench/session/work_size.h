// Chooses how large a step is, so that twelve rounds of an interleaved session fit into the time cap (--fit). The rule
// is in bench/measure/session_plan.h.
#pragma once

#include <functional>
#include <string>

#include "bench/measure/session_plan.h"
#include "bench/train/trainer.h"
#include "bench/world/setup.h"

namespace hvd::bench {

WorkSize work_of(const Setup& setup);

/// Changes batch and image size of the setup to `work`. Scales the learning rate by the batch, because
/// a small batch diverges at the rate of a large one (VGG-16 with batch 1 at 0.01). Source: arXiv:1706.02677, the
/// linear scaling rule.
void take_work(const WorkSize& work, Setup& setup);

/// Says how long kMinRounds rounds would take, that they do not fit into `cap_seconds`, and which options would
/// help. The options for a smaller batch include its learning rate (take_work()).
/// `fitted`: --fit chose the size, and steps have become slower since.
std::string room_advice(const Setup& setup, const ShortestSession& shortest, double step_seconds, double cap_seconds,
                        bool fitted);

struct WorkTrial {
  double step_seconds = 0;  ///< of the slowest rank
  WorkSize fits;  ///< the work to take: the setup's if that fits, or if there is no smaller work; else a smaller one
  bool done = false;       ///< the trial takes no more steps
  bool cancelled = false;  ///< rank 0's `stop` gave a reason
};

/// Collective: trains until a step's time is known. Rank 0 decides, and all ranks return rank 0's result. `stop` (may
/// be empty) is asked after every step; if rank 0's returns a reason, the trial ends.
WorkTrial try_work(Trainer& trainer, const Setup& setup, const ShortestSession& shortest, double cap_seconds,
                   const std::function<std::string()>& stop);

/// Returns "vgg16 takes 6.9 s a step here with batch 4: batch 1, images 224 x 224, learning rate 0.0025".
/// `asked`, `step_seconds`: the work that the user asked for, and how long a step of it takes.
std::string fit_line(const Setup& fitted, const WorkSize& asked, double step_seconds);

}  // namespace hvd::bench
