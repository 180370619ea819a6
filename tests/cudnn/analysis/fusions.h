// Makes a Fusion from a level and the way in which images are read.
#pragma once

#include "models/cudnn/analysis/fusion.h"

namespace hvd::models::cudnn {

inline Fusion reading(Images images, int level = 2) { return {.level = level, .images = images}; }

}  // namespace hvd::models::cudnn
