#include "models/cudnn/kernels/table.h"

namespace hvd::models::cudnn::kernels {

Table gpu_table() {
  return {.pointwise = &pointwise,
          .copy_all = &copy,
          .copy_matrix = &copy,
          .columns = &columns,
          .max_pool = &max_pool,
          .avg_pool = &avg_pool,
          .global_avg_pool = &global_avg_pool,
          .max_pool_backward = &max_pool_backward,
          .avg_pool_backward = &avg_pool_backward,
          .global_avg_pool_backward = &global_avg_pool_backward,
          .row_sums_workspace = &row_sums_workspace,
          .statistics = &statistics,
          .bias_gradient = &bias_gradient,
          .norm_finalize = &norm_finalize,
          .norm_statistics = &norm_statistics,
          .norm_backward_weights = &norm_backward_weights,
          .norm_backward_apply = &norm_backward_apply,
          .softmax_cross_entropy = &softmax_cross_entropy,
          .softmax_cross_entropy_backward = &softmax_cross_entropy_backward,
          .sgd = &sgd,
          .find_overflow = &find_overflow,
          .adjust_loss_scale = &adjust_loss_scale,
          .synthetic_batch = &synthetic_batch};
}

}  // namespace hvd::models::cudnn::kernels
