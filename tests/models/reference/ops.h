// Every operation of the graph as a pure function on double tensors. The reference backend runs these functions, and
// the gradient checks differentiate them. Shapes and argument order are those of OpKind in graph.h. Outputs are
// overwritten. The code is simple on purpose, so that its formulas can be compared with those in the papers.
//
// The graph's builder checks the arguments. These functions only check labels, because labels are data.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "models/graph/graph.h"

namespace hvd::models::reference {

struct In {
  std::span<const double> data;  ///< row-major, shape.count() elements; empty: absent
  Shape shape;
};
struct Out {
  std::span<double> data;  ///< row-major, shape.count() elements; empty: not computed
  Shape shape;
  operator In() const { return {data, shape}; }  // NOLINT(google-explicit-constructor): an output may be read
};

inline void fill(const Out& out, double value) { std::fill(out.data.begin(), out.data.end(), value); }

void conv(const Window& window, const In& x, const In& w, const In& bias, const Out& y);
void conv_backward_weights(const Window& window, const In& x, const In& dy, const Out& dw, const Out& dbias);
void conv_backward_data(const Window& window, const In& w, const In& dy, const Out& dx);

void fully_connected(const In& x, const In& w, const In& bias, const Out& y);
void fully_connected_backward_weights(const In& x, const In& dy, const Out& dw, const Out& dbias);
void fully_connected_backward_data(const In& w, const In& dy, const Out& dx);

/// The outputs of batch_norm(), which works in training mode: it normalises with the batch's biased variance, and
/// updates the running statistics with the unbiased variance. Source: Ioffe and Szegedy, arXiv:1502.03167, algorithm 1.
struct BatchNormOut {
  Out y, mean, inv_std, running_mean, running_var;
};
void batch_norm(const BatchNormAttr& attr, const In& x, const In& gamma, const In& beta, const BatchNormOut& out);
struct BatchNormIn {
  In x, gamma, mean, inv_std, dy;
};
void batch_norm_backward(const BatchNormIn& in, const Out& dx, const Out& dgamma, const Out& dbeta);

void relu(const In& x, const Out& y);
void relu_backward(const In& y, const In& dy, const Out& dx);

void max_pool(const Window& window, const In& x, const Out& y);
void max_pool_backward(const Window& window, const In& x, const In& y, const In& dy, const Out& dx);
void avg_pool(const Window& window, const In& x, const Out& y);
void avg_pool_backward(const Window& window, const In& dy, const Out& dx);
void global_avg_pool(const In& x, const Out& y);
void global_avg_pool_backward(const In& dy, const Out& dx);

void add(const In& a, const In& b, const Out& y);
void concat(std::span<const In> inputs, const Out& y);
void concat_backward(const In& dy, std::span<const Out> diffs);
void accumulate(std::span<const In> parts, const Out& sum);

/// Computes dropout, forward or backward: y = x * scale where `keep` is not 0, else 0.
void dropout(std::span<const std::uint8_t> keep, double scale, const In& x, const Out& y);

/// Returns the batch's mean of -log softmax(logits)[label]. Errors: invalid_argument for a label outside [0, k).
double softmax_cross_entropy(const In& logits, std::span<const std::int32_t> labels, const Out& probabilities);
void softmax_cross_entropy_backward(double weight, const In& probabilities, std::span<const std::int32_t> labels,
                                    const Out& dlogits);

}  // namespace hvd::models::reference
