// A table of kernels.h's functions. The executor calls kernels through this table, so that tests can use host code
// instead.
#pragma once

#include "models/cudnn/kernels/kernels.h"

namespace hvd::models::cudnn::kernels {

struct Table {
  decltype(&kernels::pointwise) pointwise = nullptr;
  void (*copy_all)(std::span<const Copy>, Stream) = nullptr;
  void (*copy_matrix)(const Matrix&, const Matrix&, Stream) = nullptr;
  decltype(&kernels::columns) columns = nullptr;
  decltype(&kernels::max_pool) max_pool = nullptr;
  decltype(&kernels::avg_pool) avg_pool = nullptr;
  decltype(&kernels::global_avg_pool) global_avg_pool = nullptr;
  decltype(&kernels::max_pool_backward) max_pool_backward = nullptr;
  decltype(&kernels::avg_pool_backward) avg_pool_backward = nullptr;
  decltype(&kernels::global_avg_pool_backward) global_avg_pool_backward = nullptr;
  decltype(&kernels::row_sums_workspace) row_sums_workspace = nullptr;
  decltype(&kernels::statistics) statistics = nullptr;
  decltype(&kernels::bias_gradient) bias_gradient = nullptr;
  decltype(&kernels::norm_finalize) norm_finalize = nullptr;
  decltype(&kernels::norm_statistics) norm_statistics = nullptr;
  decltype(&kernels::norm_backward_weights) norm_backward_weights = nullptr;
  decltype(&kernels::norm_backward_apply) norm_backward_apply = nullptr;
  decltype(&kernels::softmax_cross_entropy) softmax_cross_entropy = nullptr;
  decltype(&kernels::softmax_cross_entropy_backward) softmax_cross_entropy_backward = nullptr;
  decltype(&kernels::sgd) sgd = nullptr;
  decltype(&kernels::find_overflow) find_overflow = nullptr;
  decltype(&kernels::adjust_loss_scale) adjust_loss_scale = nullptr;
  decltype(&kernels::synthetic_batch) synthetic_batch = nullptr;
};

/// Returns the table of the kernels that run on the GPU.
Table gpu_table();

}  // namespace hvd::models::cudnn::kernels
