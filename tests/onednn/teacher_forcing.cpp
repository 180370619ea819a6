#include "tests/onednn/teacher_forcing.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "engine/base/float16.h"
#include "models/onednn/compiler.h"
#include "models/onednn/parameters.h"
#include "models/onednn/primitive_program.h"
#include "models/onednn/threads.h"
#include "models/random.h"
#include "tests/models/testing.h"
#include "tests/onednn/expected.h"

namespace hvd::models::testing {
namespace {

using onednn::Md;
using onednn::TensorView;
using Type = dnnl::memory::data_type;
using Tag = dnnl::memory::format_tag;

class Comparer {
 public:
  Comparer(const Graph& graph, DataType compute, DataType gradient)
      : graph_(graph),
        compute_(compute),
        arena_(make_heap_arena()),
        program_(dnnl::engine(dnnl::engine::kind::cpu, 0)),
        parameters_(graph, gradient, program_),
        compiler_(graph, {.compute = compute, .seed = kSeed, .keep_tensors = true}, program_, parameters_) {
    compiler_.compile();
    parameters_.allocate(arena_.allocate);
    program_.bind();
    parameters_.initialise(kSeed);
    program_.refresh();
    for (std::size_t i = 0; i < graph.parameters.size(); ++i) parameter_of_[graph.parameters[i].gradient] = i;
  }

  Comparison run() {
    const Shape images = graph_.tensor(graph_.images).shape;
    std::vector<float> pixels(static_cast<std::size_t>(images.count()));
    labels_.resize(static_cast<std::size_t>(images[0]));
    synthetic_batch({.seed = 3, .image_elements = images.count() / images[0], .classes = graph_.classes}, 0, pixels,
                    labels_);
    const Batch batch{.images = pixels, .labels = labels_, .first_sample = 0, .step = 0};
    program_.set_external(compiler_.images(), pixels.data());
    RecordingSink sink;
    onednn::StepInput input{.batch = &batch, .loss = 0};
    program_.run(input, sink, false);
    compare_with_step(batch, input.loss);

    for (const Parameter& parameter : graph_.parameters) read_parameter(parameter);
    Tensor& first = known_[graph_.images] = zeros(images);
    std::copy(pixels.begin(), pixels.end(), first.data.begin());
    // The library rounds the images to its compute type first.
    if (compute_ == DataType::kBF16) round_to_bf16(first);
    for (const Node& node : graph_.nodes) compare(node);
    return result_;
  }

 private:
  static constexpr std::uint64_t kSeed = 5;

  void compare_with_step(const Batch& batch, double loss) {
    const HeapArena arena = make_heap_arena();
    const auto step = make_onednn_step(
        graph_, {.compute = compute_, .gradient = parameters_.gradient_type(), .threads = 1, .seed = kSeed},
        arena.allocate);
    RecordingSink sink;
    const double step_loss = step->forward_backward(batch, sink);
    const auto kept = parameters_.gradient_arena();
    result_.equal_to_step = step_loss == loss && std::equal(kept.begin(), kept.end(), step->gradient_arena().begin(),
                                                            step->gradient_arena().end());
  }

  static void round_to_bf16(Tensor& tensor) {
    for (double& value : tensor.data) value = bf16_to_float(float_to_bf16(static_cast<float>(value)));
  }

  void compare(const Node& node) {
    const NodeId forward = node.forward == kNoNode ? static_cast<NodeId>(&node - graph_.nodes.data()) : node.forward;
    const bool conv = graph_.node(forward).kind == OpKind::kConv;
    const Circumstances with{
        .compute = compute_, .seed = kSeed, .labels = labels_, .winograd = conv && compiler_.is_winograd(forward)};
    for (Expected& expected : expected_outputs(graph_, node, known_, with)) check(node, std::move(expected));
  }

  void read_parameter(const Parameter& parameter) {
    Tensor tensor = zeros(graph_.tensor(parameter.value).shape);
    std::vector<float> values(tensor.data.size());
    parameters_.read(static_cast<std::size_t>(&parameter - graph_.parameters.data()), values);
    std::copy(values.begin(), values.end(), tensor.data.begin());
    // The library rounds weights of rank 2 and more to the compute type. Vectors stay in fp32.
    if (compute_ == DataType::kBF16 && tensor.shape.rank() > 1) round_to_bf16(tensor);
    known_[parameter.value] = std::move(tensor);
  }

  /// Returns the library's values of a tensor that the library keeps in memory.
  std::vector<float> library_values(const TensorView& value, const Shape& shape) {
    std::vector<float> values(static_cast<std::size_t>(shape.count()));
    const Md plain = shape.rank() == 2 ? Md({shape[0], shape[1]}, Type::f32, Tag::nc)
                                       : Md({shape[0], shape[3], shape[1], shape[2]}, Type::f32, Tag::nhwc);
    dnnl::memory from(value.desc, program_.engine(), value.buffer->data);
    dnnl::memory to(plain, program_.engine(), values.data());
    dnnl::reorder(from, to).execute(program_.stream(), from, to);
    program_.stream().wait();
    return values;
  }

  /// If the library keeps the tensor, compares the tensor, and later operations use the library's values. Otherwise
  /// later operations use the reference's values.
  void check(const Node& node, Expected given) {
    const TensorId id = given.id;
    Tensor& expected = given.tensor;
    bool stored_in_compute_type = given.stored_in_compute_type;
    const TensorDesc& desc = graph_.tensor(id);
    std::vector<float> actual;
    if (desc.role == TensorRole::kGradient) {
      actual = std::vector<float>(expected.data.size());
      parameters_.read_gradient(parameter_of_.at(id), actual);
      stored_in_compute_type = parameters_.gradient_type() == DataType::kBF16;
    } else if (const TensorView value = compiler_.tensor(id)) {
      actual = library_values(value, desc.shape);
      stored_in_compute_type = stored_in_compute_type && compute_ == DataType::kBF16;
    } else {
      known_[id] = std::move(expected);  // fused away: later operations use the reference's values and their bound
      return;
    }
    Disagreement worst{.node = node.name, .tensor = desc.name, .error = 0, .bound = 0};
    double worst_ratio = 0;
    for (std::size_t i = 0; i < actual.size(); ++i) {
      double bound = expected.bound.empty() ? 0 : expected.bound[i];
      if (stored_in_compute_type) bound += 0.5 * kEpsilonBf16 * (std::abs(expected.data[i]) + bound);
      bound += kEpsilon * std::abs(expected.data[i]) + 0x1p-126;  // rounding of the final store; gradual underflow
      const double error = std::abs(static_cast<double>(actual[i]) - expected.data[i]);
      const double ratio = std::isfinite(actual[i]) ? error / bound : 1e30;
      if (ratio > worst_ratio) {
        worst_ratio = ratio;
        worst.error = error;
        worst.bound = bound;
      }
    }
    ++result_.tensors;
    result_.elements += actual.size();
    if (worst_ratio > result_.worst_ratio) {
      result_.worst_ratio = worst_ratio;
      result_.worst = node.name + " / " + desc.name;
    }
    if (worst_ratio > 1) result_.failures.push_back(worst);
    Tensor& forced = known_[id] = zeros(desc.shape);
    std::copy(actual.begin(), actual.end(), forced.data.begin());
  }

  const Graph& graph_;
  DataType compute_;
  HeapArena arena_;
  onednn::PrimitiveProgram program_;
  onednn::Parameters parameters_;
  onednn::Compiler compiler_;
  std::vector<std::int32_t> labels_;
  std::map<TensorId, Tensor> known_;
  std::map<TensorId, std::size_t> parameter_of_;
  Comparison result_;
};

}  // namespace

Comparison compare_operations(const Graph& graph, DataType compute, DataType gradient) {
  const onednn::ThreadScope threads(1);
  return Comparer(graph, compute, gradient).run();
}

}  // namespace hvd::models::testing
