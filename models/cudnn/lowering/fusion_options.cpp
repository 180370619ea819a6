#include "models/cudnn/lowering/fusion_options.h"

#include <string_view>

namespace hvd::models::cudnn {
namespace {

std::string_view name(ImageLayout images) {
  switch (images) {
    case ImageLayout::kPadded: return "padded";
    case ImageLayout::kColumns: break;
  }
  return "as columns";
}

}  // namespace

std::string text(const FusionOptions& fusion) {
  return "level " + std::to_string(fusion.level) + ", prologues none, own norms rectifying, images " +
         std::string(name(fusion.images));
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
