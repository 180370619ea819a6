#include "models/zoo/zoo.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/error.h"
#include "models/zoo/networks.h"

namespace hvd::models {
namespace {

// The auxiliary head's 5x5 convolution needs a 17x17 grid. Smaller images than 299 x 299 pixels have a smaller grid.
constexpr std::int64_t kAuxiliaryMinimumImageSize = 299;

}  // namespace

const std::vector<ModelInfo>& model_catalogue() {
  // Built once, never changed.
  static const std::vector<ModelInfo> catalogue{
      {.name = "inception3",
       .aliases = {"inception_v3", "inceptionv3"},
       .default_image_size = 299,
       .minimum_image_size = 75},
      {.name = "resnet50", .aliases = {"resnet50_v1.5"}, .default_image_size = 224, .minimum_image_size = 32},
      {.name = "resnet101", .aliases = {"resnet101_v1.5"}, .default_image_size = 224, .minimum_image_size = 32},
      {.name = "vgg16", .aliases = {"vgg-16"}, .default_image_size = 224, .minimum_image_size = 32},
  };
  return catalogue;
}

const ModelInfo& find_model(std::string_view name) {
  std::string known;
  for (const ModelInfo& info : model_catalogue()) {
    if (info.name == name || std::find(info.aliases.begin(), info.aliases.end(), name) != info.aliases.end()) {
      return info;
    }
    known += (known.empty() ? "" : ", ") + info.name;
    for (const std::string& alias : info.aliases) known += fmt::format(" (also {})", alias);
  }
  throw Error(Errc::kInvalidArgument, fmt::format("unknown model '{}'; known models: {}", name, known));
}

Graph build_model(const ModelSpec& spec) {
  const ModelInfo& info = find_model(spec.model);
  const std::int64_t image_size = spec.image_size == 0 ? info.default_image_size : spec.image_size;
  if (spec.auxiliary_head && info.name != "inception3") {
    throw Error(Errc::kInvalidArgument, info.name + " has no auxiliary head; only inception3 has one");
  }
  const std::int64_t minimum = spec.auxiliary_head ? kAuxiliaryMinimumImageSize : info.minimum_image_size;
  if (image_size < minimum) {
    throw Error(Errc::kInvalidArgument,
                fmt::format("{0}{1} needs images of at least {2}x{2}, got {3}", info.name,
                            spec.auxiliary_head ? " with its auxiliary head" : "", minimum, image_size));
  }
  GraphBuilder builder(info.name, spec.batch_size, image_size, spec.classes);
  if (info.name == "vgg16") vgg16(builder, spec.classes);
  if (info.name == "resnet50") resnet50(builder, spec.classes);
  if (info.name == "resnet101") resnet101(builder, spec.classes);
  if (info.name == "inception3") inception3(builder, spec.classes, spec.auxiliary_head);
  return std::move(builder).build();
}

}  // namespace hvd::models
