// The list of networks, and the function that builds their forward graphs for differentiate(). Pure.
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
  std::int64_t image_size = 0;  ///< height and width in pixels; 0: the network's default
  std::int64_t classes = 1000;
  bool auxiliary_head = false;  ///< adds the auxiliary head; Inception V3 only
};

struct ModelInfo {
  std::string name;                  ///< canonical: "inception3", "resnet50", "resnet101", "vgg16"
  std::vector<std::string> aliases;  ///< "inception_v3", ...
  std::int64_t default_image_size = 224;
  std::int64_t minimum_image_size = 32;
};

const std::vector<ModelInfo>& model_catalogue();

/// Returns the entry for a name or alias. Errors: invalid_argument that lists the known names.
const ModelInfo& find_model(std::string_view name);

/// Builds the forward graph of a network. Errors: invalid_argument for an unknown model, for a batch below 1, and for
/// an image size below the network's minimum, which the text names.
Graph build_model(const ModelSpec& spec);

}  // namespace hvd::models
