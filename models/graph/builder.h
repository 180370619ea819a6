// Builds a forward Graph and infers the shapes of its tensors. One builder makes one graph. Not thread-safe. Every
// method throws Error{kInvalidArgument} if shapes do not fit, for example if an image is too small for the network. The
// text names the node and the shapes.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "models/graph/graph.h"

namespace hvd::models {

class GraphBuilder {
 public:
  /// Makes the images {batch, size, size, 3} and the labels {batch}.
  GraphBuilder(std::string model, std::int64_t batch_size, std::int64_t image_size, std::int64_t classes);

  [[nodiscard]] TensorId images() const { return graph_.images; }
  [[nodiscard]] const Shape& shape(TensorId id) const { return graph_.tensor(id).shape; }

  TensorId conv(std::string_view name, TensorId x, std::int64_t out_channels, const Window& window, bool bias,
                Init init = Init::kHeNormal);
  TensorId batch_norm(std::string_view name, TensorId x, const BatchNormAttr& attr = {});
  TensorId relu(std::string_view name, TensorId x);
  TensorId max_pool(std::string_view name, TensorId x, const Window& window);
  TensorId avg_pool(std::string_view name, TensorId x, const Window& window);
  TensorId global_avg_pool(std::string_view name, TensorId x);
  TensorId fully_connected(std::string_view name, TensorId x, std::int64_t out_features,
                           Init init = Init::kGlorotUniform);
  TensorId add(std::string_view name, TensorId a, TensorId b);
  TensorId concat(std::string_view name, std::span<const TensorId> inputs);
  TensorId dropout(std::string_view name, TensorId x, double rate);
  /// Adds a loss. The first call makes the main loss.
  void softmax_cross_entropy(std::string_view name, TensorId logits, double weight = 1.0);

  /// Checks that there is a loss and that every activation is used, and returns the finished graph.
  Graph build() &&;

 private:
  TensorId new_tensor(std::string name, Shape shape, TensorRole role);
  TensorId new_parameter(std::string name, Shape shape, Init init, bool decay);
  NodeId new_node(OpKind kind, std::string_view name, std::vector<TensorId> inputs, std::vector<TensorId> outputs,
                  Attr attr);

  Graph graph_;
  std::uint64_t dropout_streams_ = 0;
};

}  // namespace hvd::models
