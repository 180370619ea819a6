// Makes FusionOptions from a level and the way in which images are read.
#pragma once

#include "models/cudnn/lowering/lowering.h"

namespace hvd::models::cudnn {

inline FusionOptions reading(ImageLayout images, int level = 2) { return {.level = level, .images = images}; }

}  // namespace hvd::models::cudnn
