// Builds the networks; each family has its own file. build_model() in zoo.h checks the arguments and calls one of these
// functions.
// Node names follow torchvision's module paths, so that our tensors can be compared by name with those of torchvision.
#pragma once

#include "models/graph/builder.h"

namespace hvd::models {

/// VGG configuration D (16 weight layers). Source: Simonyan and Zisserman, arXiv:1409.1556, table 1.
void vgg16(GraphBuilder& builder, std::int64_t classes);

/// Bottleneck residual networks, version 1.5: the 3x3 convolution has the stride, as in torchvision.
/// Source: He et al., arXiv:1512.03385, table 1; torchvision/models/resnet.py.
void resnet50(GraphBuilder& builder, std::int64_t classes);
void resnet101(GraphBuilder& builder, std::int64_t classes);

/// Inception V3. Source: Szegedy et al., arXiv:1512.00567; torchvision/models/inception.py.
void inception3(GraphBuilder& builder, std::int64_t classes, bool auxiliary_head);

}  // namespace hvd::models
