// The backward of the softmax cross-entropy, on one element (element.h).
#pragma once

#include <cstdint>

#include "models/cudnn/kernels/element.h"

namespace hvd::models::cudnn::kernels {

template <class T>
struct SoftmaxCrossEntropyBackwardBody {
  const float* probabilities;
  const std::int32_t* labels;
  float factor;  ///< weight / number of rows
  const float* loss_scale;
  Matrix dlogits;

  HVD_HOST_DEVICE void operator()(std::int64_t i) const {
    const std::int64_t row = quotient(i, dlogits.channels);
    const Place place{row, i - row * dlogits.channels};
    const float hot = labels[place.row] == place.channel ? 1.0F : 0.0F;
    const float value[1] = {(probabilities[i] - hot) * factor * *loss_scale};
    store_row<T, 1>(dlogits, place, value);
  }
};

}  // namespace hvd::models::cudnn::kernels
