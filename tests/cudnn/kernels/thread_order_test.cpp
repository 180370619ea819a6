// Runs kernels whose threads work together with two orders of threads between barriers: by increasing and by decreasing
// index. Both runs must give the same bits. The bits would differ if a thread read what another thread had written with
// no barrier in between. Runs on the host, because there the order can be chosen.
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "tests/cudnn/kernels/kernel_memory.h"
#include "tests/gpu/host_grid.h"

namespace hvd::models::cudnn::kernels::thread_order_test {
namespace {

using test::ThreadOrder;
using test::WithThreadOrder;

/// Runs `work` once in each order and compares the results. `work` must return everything that its kernels wrote.
void expect_same(const std::function<std::vector<std::vector<std::byte>>()>& work) {
  std::vector<std::vector<std::byte>> up, down;
  {
    const WithThreadOrder order(ThreadOrder::kUp);
    up = work();
  }
  {
    const WithThreadOrder order(ThreadOrder::kDown);
    down = work();
  }
  EXPECT_EQ(up, down);
}

class ThreadOrderTest : public KernelTest {};

TEST_P(ThreadOrderTest, SumsOverRows) {
  for (const Shape& shape : {Shape{300, 3}, Shape{300, 64}, Shape{300, 2048}}) {
    SCOPED_TRACE(shape.text());
    const Tensor x(GetParam(), shape, 1), dy(GetParam(), shape, 2);
    const Tensor vector(DataType::kF32, {shape[1]}, 3);
    const auto bytes = static_cast<std::size_t>(shape[1]) * sizeof(float);
    expect_same([&] {
      const Memory workspace(row_sums_workspace(x.matrix(), 2));
      const Memory sum(bytes), square_sum(bytes), bias(bytes), dgamma(bytes), dbeta(bytes), a(bytes), b(bytes),
          c(bytes);
      statistics(x.matrix(), sum.as(), square_sum.as(), workspace.as<void>(), nullptr);
      bias_gradient(x.matrix(), bias.as<void>(), DataType::kF32, workspace.as<void>(), nullptr);
      const float* const any = vector.memory.as();
      norm_backward_weights({.x = x.matrix(),
                             .dy = dy.matrix(),
                             .norm = {any, any, any, any},
                             .rectified = true,
                             .dgamma = dgamma.as<void>(),
                             .dbeta = dbeta.as<void>(),
                             .a = a.as(),
                             .b = b.as(),
                             .c = c.as()},
                            workspace.as<void>(), nullptr);
      std::vector<std::vector<std::byte>> written;
      for (const Memory* memory : {&sum, &square_sum, &bias, &dgamma, &dbeta, &a, &b, &c}) {
        written.push_back(memory->read<std::byte>());
      }
      return written;
    });
  }
}

TEST_P(ThreadOrderTest, Softmax) {
  const Tensor logits(GetParam(), {3, 1001}, 1);
  const Memory labels(std::vector<std::int32_t>{0, 500, 1000});
  expect_same([&] {
    const Memory rows(3 * sizeof(float)), loss(sizeof(float)), probabilities(logits.values.size() * sizeof(float));
    softmax_cross_entropy(logits.matrix(), labels.as<std::int32_t>(), rows.as(), loss.as(), probabilities.as(),
                          nullptr);
    return std::vector{rows.read<std::byte>(), loss.read<std::byte>(), probabilities.read<std::byte>()};
  });
}

INSTANTIATE_TEST_SUITE_P(Types, ThreadOrderTest, every_type(), type_name);

}  // namespace
}  // namespace hvd::models::cudnn::kernels::thread_order_test
