// Ways to fuse that differ from what cuDNN can do alone in one thing.
#pragma once

#include "models/cudnn/fusion.h"

namespace hvd::models::cudnn {

inline Fusion reading(Images images, int level = 2) {
  Fusion fusion = cudnn_alone(level);
  fusion.images = images;
  return fusion;
}

}  // namespace hvd::models::cudnn
