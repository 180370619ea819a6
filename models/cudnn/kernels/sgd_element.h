// The update of the weights, the search for overflows, and the loss scale (element.h).
#pragma once

#include <cstdint>

#include "models/cudnn/kernels/element.h"

namespace hvd::models::cudnn::kernels {

/// Updates four elements, which belong to one parameter, because slots are multiples of 64 elements.
template <class Gradient, class Copied>
struct SgdBody {
  Sgd work;
  static constexpr int kVector = 4;
  static constexpr std::int64_t kDecayBlock = 64;

  HVD_HOST_DEVICE void operator()(std::int64_t i) const {
    if (work.loss_scale->overflow != 0) return;
    const StepScalars scalars = *work.scalars;
    const float gradient_scale = scalars.gradient_scale / work.loss_scale->scale;
    const std::int64_t at = i * kVector;
    auto w = load<float, kVector>(work.weights, at);
    auto m = load<float, kVector>(work.momentum, at);
    const auto g = load<Gradient, kVector>(work.gradients, at);
    const float decay = work.decays[at / kDecayBlock] != 0 ? scalars.weight_decay : 0.0F;
    Vector<Copied, kVector> copied;
    for (int k = 0; k < kVector; ++k) {
      m.at[k] = scalars.momentum * m.at[k] + gradient_scale * to_float(g.at[k]) + decay * w.at[k];
      w.at[k] -= scalars.learning_rate * m.at[k];
      copied.at[k] = from_float<Copied>(w.at[k]);
    }
    store<float, kVector>(work.weights, at, w);
    store<float, kVector>(work.momentum, at, m);
    if (work.copy != nullptr) store<Copied, kVector>(work.copy, at, copied);
  }
};

template <class T>
struct FindOverflowBody {
  const T* gradients;
  LossScale* loss_scale;
  static constexpr int kVector = 16 / static_cast<int>(sizeof(T));

  HVD_HOST_DEVICE void operator()(std::int64_t i) const {
    const auto g = load<T, kVector>(gradients, i * kVector);
    for (int k = 0; k < kVector; ++k) {
      const float value = to_float(g.at[k]);
      if (!(value - value == 0.0F)) loss_scale->overflow = 1;  // all threads write the same value
    }
  }
};

struct AdjustLossScaleBody {
  LossScale* loss_scale;
  std::int32_t growth_interval;
  static constexpr float kLargest = 0x1.0p24F;  // dlogits, up to scale / batch size, must stay in fp16's range

  HVD_HOST_DEVICE void operator()(std::int64_t /*only*/) const {
    LossScale now = *loss_scale;
    if (now.overflow != 0) {
      now.scale = now.scale > 1 ? now.scale / 2 : now.scale;
      now.good_steps = 0;
      ++now.skipped;
    } else if (++now.good_steps == growth_interval) {
      now.scale = now.scale < kLargest ? now.scale * 2 : now.scale;
      now.good_steps = 0;
    }
    now.overflow = 0;
    *loss_scale = now;
  }
};

}  // namespace hvd::models::cudnn::kernels
