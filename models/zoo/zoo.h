// The networks. Each function is pure and returns a forward graph ready for differentiate().
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/graph/graph.h"

namespace hvd::models {

struct ModelSpec {
  std::string model;            ///< canonical name or alias
  std::int64_t batch_size = 0;  ///< images per rank
  std::int64_t image_size = 0;  ///< 0: the network's default
  std::int64_t classes = 1000;
  bool auxiliary_head = false;  ///< Inception V3 only
};

struct ModelInfo {
  std::string name;                  ///< canonical: "inception3", "resnet50", "resnet101", "vgg16"
  std::vector<std::string> aliases;  ///< "inception_v3", ...
  std::int64_t default_image_size = 224;
  std::int64_t minimum_image_size = 32;
  std::int64_t published_parameters = 0;  ///< at 1000 classes, without the auxiliary head
  double published_forward_gmac = 0;      ///< at the default image size
  std::string source;                     ///< where the published counts come from
};

const std::vector<ModelInfo>& model_catalogue();

/// Canonical entry for a name or alias. Errors: invalid_argument that lists the known names.
const ModelInfo& find_model(std::string_view name);

/// Forward graph of the network. Errors: invalid_argument for an unknown model, a batch below 1 or an
/// image size that the network cannot take (says the minimum).
Graph build_model(const ModelSpec& spec);

}  // namespace hvd::models
