#include "models/cudnn/analysis/fusion.h"

#include <string_view>

namespace hvd::models::cudnn {
namespace {

std::string_view name(Images images) {
  switch (images) {
    case Images::kPadded: return "padded";
    case Images::kColumns: break;
  }
  return "as columns";
}

}  // namespace

std::string text(const Fusion& fusion) {
  return "level " + std::to_string(fusion.level) + ", prologues none, own norms rectifying, images " +
         std::string(name(fusion.images));
}

std::vector<Fusion> worth_timing(const Fusion& first) {
  std::vector<Fusion> list{first};
  if (first.level < 2) return list;
  Fusion less = first;
  less.level = 1;
  list.push_back(less);
  return list;
}

}  // namespace hvd::models::cudnn
