#include "models/cudnn/lowering/fusion_options.h"

namespace hvd::models::cudnn {

std::string text(const FusionOptions& fusion) {
  return "level " + std::to_string(fusion.level) + ", prologues none, own norms rectifying, images " +
         (fusion.images == ImageLayout::kPadded ? "padded" : "as columns");
}

std::vector<FusionOptions> worth_timing(const FusionOptions& first) {
  std::vector<FusionOptions> list{first};
  if (first.level < 2) return list;
  FusionOptions less = first;
  less.level = 1;
  list.push_back(less);
  return list;
}

}  // namespace hvd::models::cudnn
