#include "models/cudnn/run/cublaslt_launcher.h"

#include <algorithm>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/hash.h"
#include "models/cudnn/plan/winners.h"

namespace hvd::models::cudnn {
namespace {

using kernels::Stream;

// Returns a launch of our kernel that computes the product's epilogue.
Launch epilogue_launch(const Addresses& at, const Group& group, const Product& product, const kernels::Table& kernels) {
  if (product.bias_gradient != nullptr) {
    const Operation& bias_gradient = group.operations.back();
    return [run = kernels.bias_gradient, dy = at.matrix(bias_gradient.inputs[0]), out = product.bias_gradient,
            type = product.bias_type,
            workspace = at.arenas().workspace.data()](Stream stream) { run(dy, out, type, workspace, stream); };
  }
  kernels::Pointwise work;
  work.out = at.matrix(group.writes.front());
  work.input[0] = work.out;  // in place
  work.bias = product.bias;
  work.relu = product.relu;
  return [run = kernels.pointwise, work](Stream stream) { run(work, stream); };
}

/// Returns the algorithm's bytes as text. The bytes are valid only for one version of the library (documentation of
/// cublasLtMatmulAlgo_t).
std::string text_of(const cublasLtMatmulAlgo_t& algorithm) {
  std::string text = "lt:";
  for (const std::uint64_t word : algorithm.data) text += hex64(word);
  return text;
}

/// Moves `winner` to the front of `list`, if `list` contains `winner`.
void prefer(std::vector<cublasLtMatmulAlgo_t>& list, const std::string& winner) {
  const auto found =
      std::find_if(list.begin(), list.end(), [&](const auto& algorithm) { return text_of(algorithm) == winner; });
  if (found != list.end()) std::rotate(list.begin(), found, found + 1);
}

}  // namespace

/// The product of a group, bound to the group's addresses. The library has algorithms for this product.
struct CublasLtLauncher::BoundGroup {
  std::shared_ptr<const BoundProduct> product;
  std::string key;
  Algorithms* algorithms = nullptr;     ///< `algorithms->list` is not empty
  std::shared_ptr<const Launch> after;  ///< computes the epilogue if the library cannot; else null

  [[nodiscard]] Launch launch(const cublasLtMatmulAlgo_t& algorithm) const {
    if (!after) return [run = product, algorithm](Stream stream) { run->run(algorithm, stream); };
    return [run = product, then = after, algorithm](Stream stream) {
      run->run(algorithm, stream);
      (*then)(stream);
    };
  }
};

CublasLtLauncher::CublasLtLauncher(std::shared_ptr<const CublasLt> library) : library_(std::move(library)) {
  library_->check(library_->call().create(&handle_), "cublasLtCreate");
}

CublasLtLauncher::~CublasLtLauncher() { static_cast<void>(library_->call().destroy(handle_)); }

CublasLtLauncher::BoundGroup CublasLtLauncher::bind(const Addresses& addresses, const Group& group, ComputeType compute,
                                                    const kernels::Table& kernels) {
  const auto prepare = [&](const Product& product) {
    BoundGroup bound;
    bound.product =
        std::make_shared<const BoundProduct>(*library_, handle_, product, compute, addresses.arenas().workspace);
    bound.key = bound.product->key();
    const auto [known, first] = algorithms_.try_emplace(bound.key);
    bound.algorithms = &known->second;
    known->second.used = true;
    if (!first) return bound;
    ProductAlgorithms answer = bound.product->algorithms();
    known->second = {.text = product.text,
                     .epilogue = has_epilogue(product),
                     .list = std::move(answer.list),
                     .refused = 0,
                     .why = std::move(answer.why),
                     .used = true};
    if (const auto winner = winners_.find(signature_hash(bound.key)); winner != winners_.end()) {
      prefer(known->second.list, winner->second);
    }
    return bound;
  };
  const Product whole = product_of(addresses, group);
  BoundGroup bound = prepare(whole);
  if (!bound.algorithms->list.empty()) return bound;
  if (has_epilogue(whole)) {
    bound = prepare(without_epilogue(whole));
    bound.after = std::make_shared<const Launch>(epilogue_launch(addresses, group, whole, kernels));
  }
  if (bound.algorithms->list.empty()) {
    throw Error(Errc::kUnsupported, "cuBLASLt " + library_->version() + " has no algorithm for " + whole.text + " in " +
                                        std::string(name(compute)) + " (" + bound.algorithms->why + ")");
  }
  return bound;
}

Launch CublasLtLauncher::launch(const Addresses& addresses, const Group& group, ComputeType compute,
                                const kernels::Table& kernels) {
  const BoundGroup bound = bind(addresses, group, compute, kernels);
  return bound.launch(bound.algorithms->list.front());
}

void CublasLtLauncher::try_out(const Addresses& addresses, const Group& group, ComputeType compute,
                               const kernels::Table& kernels, Stream stream) {
  for (;;) {
    const BoundGroup bound = bind(addresses, group, compute, kernels);
    try {
      return bound.product->run(bound.algorithms->list.front(), stream);
    } catch (const Error& error) {
      bound.algorithms->list.erase(bound.algorithms->list.begin());
      ++bound.algorithms->refused;
      bound.algorithms->why = error.what();
    }
  }
}

std::vector<CublasLtLauncher::Candidate> CublasLtLauncher::candidates(const Addresses& addresses, const Group& group,
                                                                      ComputeType compute,
                                                                      const kernels::Table& kernels) {
  const BoundGroup bound = bind(addresses, group, compute, kernels);
  std::vector<Candidate> list;
  for (const cublasLtMatmulAlgo_t& algorithm : bound.algorithms->list) {
    list.push_back({.product = bound.key, .algorithm = text_of(algorithm), .launch = bound.launch(algorithm)});
  }
  return list;
}

void CublasLtLauncher::choose(std::uint64_t product, const std::string& algorithm) {
  winners_[product] = algorithm;
  for (auto& [key, known] : algorithms_) {
    if (signature_hash(key) == product) prefer(known.list, algorithm);
  }
}

void CublasLtLauncher::forget_uses() {
  for (auto& [key, known] : algorithms_) known.used = false;
}

std::string CublasLtLauncher::chosen_text() const {
  std::string text;
  for (const auto& [key, known] : algorithms_) {
    if (known.list.empty() || !known.used) continue;
    text.append(text.empty() ? "" : "; ").append(hex64(signature_hash(key))).append(" lt:");
    text += hex64(signature_hash(text_of(known.list.front())));
  }
  return text;
}

std::vector<std::string> CublasLtLauncher::notes() const {
  std::vector<std::string> lines;
  for (const auto& [key, known] : algorithms_) {
    if (!known.used) continue;
    if (known.list.empty() && known.epilogue) {
      lines.push_back("cuBLASLt has no epilogue for " + known.text + " (" + known.why + "): a kernel of ours follows");
    } else if (known.refused > 0) {
      lines.push_back("cuBLASLt: " + known.text + ": " + std::to_string(known.refused) + " of " +
                      std::to_string(known.refused + known.list.size()) + " algorithms do not run: " + known.why);
    }
  }
  return lines;
}

}  // namespace hvd::models::cudnn
