// Operations with a sliding window: convolutions and poolings.
#include <algorithm>
#include <limits>
#include <vector>

#include "tests/models/reference/gemm.h"
#include "tests/models/reference/ops.h"

namespace hvd::models::reference {
namespace {

std::int64_t at(const Shape& shape, std::int64_t n, std::int64_t h, std::int64_t w) {
  return ((n * shape[1] + h) * shape[2] + w) * shape[3];
}

struct Range {
  std::int64_t begin = 0, end = 0;
};

// Returns the output positions o in [0, outputs) whose tap `tap` reads an element of the input, not padding:
// 0 <= o * stride + tap - pad < inputs.
Range valid_outputs(std::int64_t outputs, std::int64_t inputs, int stride, int tap, int pad) {
  const std::int64_t shift = std::int64_t{pad} - tap;
  const std::int64_t begin = shift <= 0 ? 0 : (shift + stride - 1) / stride;
  const std::int64_t last = inputs - 1 + shift;  // largest allowed value of o * stride
  const std::int64_t end = last < 0 ? 0 : std::min(outputs, last / stride + 1);
  return {.begin = std::min(begin, end), .end = end};
}

// One run of a convolution: `columns` neighbouring output columns of one image row, with one kernel tap. `x` and `y`
// are the element offsets of the first column in input and output. From column to column, the input offset grows by
// stride_w * (input channels), and the output offset by the number of output channels.
struct Run {
  std::int64_t columns = 0, x = 0, y = 0, tap = 0;
};

// Calls visit(Run) for all (sample, output row, tap). Runs leave out padding, because padding contributes nothing.
template <class Visit>
void for_each_run(const Window& window, const Shape& x, const Shape& y, const Visit& visit) {
  for (int kh = 0; kh < window.kernel_h; ++kh) {
    const Range rows = valid_outputs(y[1], x[1], window.stride_h, kh, window.pad_top);
    for (int kw = 0; kw < window.kernel_w; ++kw) {
      const Range columns = valid_outputs(y[2], x[2], window.stride_w, kw, window.pad_left);
      if (columns.begin == columns.end) continue;
      for (std::int64_t n = 0; n < y[0]; ++n) {
        for (std::int64_t oh = rows.begin; oh < rows.end; ++oh) {
          const std::int64_t ih = oh * window.stride_h + kh - window.pad_top;
          const std::int64_t iw = columns.begin * window.stride_w + kw - window.pad_left;
          visit(Run{.columns = columns.end - columns.begin,
                    .x = at(x, n, ih, iw),
                    .y = at(y, n, oh, columns.begin),
                    .tap = std::int64_t{kh} * window.kernel_w + kw});
        }
      }
    }
  }
}

// Calls visit(x offset, y offset) for each output position and each of its taps on a real element, in row-major order.
template <class Visit>
void for_each_tap(const Window& window, const Shape& x, const Shape& y, const Visit& visit) {
  for (std::int64_t n = 0; n < y[0]; ++n) {
    for (std::int64_t oh = 0; oh < y[1]; ++oh) {
      for (std::int64_t ow = 0; ow < y[2]; ++ow) {
        const std::int64_t top = oh * window.stride_h - window.pad_top;
        const std::int64_t left = ow * window.stride_w - window.pad_left;
        const std::int64_t bottom = std::min(x[1], top + window.kernel_h);
        const std::int64_t right = std::min(x[2], left + window.kernel_w);
        for (std::int64_t ih = std::max<std::int64_t>(top, 0); ih < bottom; ++ih) {
          for (std::int64_t iw = std::max<std::int64_t>(left, 0); iw < right; ++iw) {
            visit(at(x, n, ih, iw), at(y, n, oh, ow));
          }
        }
      }
    }
  }
}

// Returns the number of real elements under each output position of a pooling window, {oh, ow}.
std::vector<double> window_counts(const Window& window, const Shape& x, const Shape& y) {
  const Shape one_x{1, x[1], x[2], 1};
  const Shape one_y{1, y[1], y[2], 1};
  std::vector<double> counts(static_cast<std::size_t>(one_y.count()), 0.0);
  for_each_tap(window, one_x, one_y,
               [&](std::int64_t, std::int64_t position) { counts[static_cast<std::size_t>(position)] += 1; });
  return counts;
}

}  // namespace

void conv(const Window& window, const In& x, const In& w, const In& bias, const Out& y) {
  const std::int64_t in = x.shape[3];
  const std::int64_t out = y.shape[3];
  for (std::size_t i = 0; i < y.data.size(); ++i) {
    y.data[i] = bias.data.empty() ? 0.0 : bias.data[i % static_cast<std::size_t>(out)];
  }
  // Turn the weights {out, kh, kw, in} into {kh, kw, in, out}: the product needs contiguous output channels.
  const std::vector<double> weights = transposed(w.data, out, w.shape.count() / out);
  for_each_run(window, x.shape, y.shape, [&](const Run& run) {
    gemm({.m = run.columns, .n = out, .k = in},
         {.data = x.data.data() + run.x, .row_stride = window.stride_w * in, .column_stride = 1},
         {.data = weights.data() + run.tap * in * out, .row_stride = out},
         {.data = y.data.data() + run.y, .row_stride = out});
  });
}

void conv_backward_weights(const Window& window, const In& x, const In& dy, const Out& dw, const Out& dbias) {
  const std::int64_t in = x.shape[3];
  const std::int64_t out = dy.shape[3];
  const std::int64_t taps = std::int64_t{window.kernel_h} * window.kernel_w;
  fill(dw, 0.0);
  for_each_run(window, x.shape, dy.shape, [&](const Run& run) {
    gemm({.m = out, .n = in, .k = run.columns}, {.data = dy.data.data() + run.y, .row_stride = 1, .column_stride = out},
         {.data = x.data.data() + run.x, .row_stride = window.stride_w * in},
         {.data = dw.data.data() + run.tap * in, .row_stride = taps * in});
  });
  if (dbias.data.empty()) return;
  fill(dbias, 0.0);
  for (std::size_t i = 0; i < dy.data.size(); ++i) dbias.data[i % static_cast<std::size_t>(out)] += dy.data[i];
}

void conv_backward_data(const Window& window, const In& w, const In& dy, const Out& dx) {
  const std::int64_t in = dx.shape[3];
  const std::int64_t out = dy.shape[3];
  const std::int64_t taps = std::int64_t{window.kernel_h} * window.kernel_w;
  fill(dx, 0.0);
  for_each_run(window, dx.shape, dy.shape, [&](const Run& run) {
    gemm({.m = run.columns, .n = in, .k = out}, {.data = dy.data.data() + run.y, .row_stride = out, .column_stride = 1},
         {.data = w.data.data() + run.tap * in, .row_stride = taps * in},
         {.data = dx.data.data() + run.x, .row_stride = window.stride_w * in});
  });
}

void max_pool(const Window& window, const In& x, const Out& y) {
  fill(y, -std::numeric_limits<double>::infinity());
  const std::int64_t channels = x.shape[3];
  for_each_tap(window, x.shape, y.shape, [&](std::int64_t from, std::int64_t to) {
    for (std::int64_t c = 0; c < channels; ++c) {
      double& best = y.data[static_cast<std::size_t>(to + c)];
      best = std::max(best, x.data[static_cast<std::size_t>(from + c)]);
    }
  });
}

void max_pool_backward(const Window& window, const In& x, const In& y, const In& dy, const Out& dx) {
  fill(dx, 0.0);
  const std::int64_t channels = x.shape[3];
  std::vector<bool> given(y.data.size(), false);  // [y]: true once the first maximum of the window has got the diff
  for_each_tap(window, x.shape, y.shape, [&](std::int64_t from, std::int64_t to) {
    for (std::int64_t c = 0; c < channels; ++c) {
      const auto source = static_cast<std::size_t>(from + c);
      const auto target = static_cast<std::size_t>(to + c);
      if (given[target] || x.data[source] != y.data[target]) continue;
      given[target] = true;
      dx.data[source] += dy.data[target];
    }
  });
}

void avg_pool(const Window& window, const In& x, const Out& y) {
  fill(y, 0.0);
  const std::int64_t channels = x.shape[3];
  const std::vector<double> counts = window_counts(window, x.shape, y.shape);
  for_each_tap(window, x.shape, y.shape, [&](std::int64_t from, std::int64_t to) {
    const double weight = 1.0 / counts[static_cast<std::size_t>(to / channels) % counts.size()];
    for (std::int64_t c = 0; c < channels; ++c) {
      y.data[static_cast<std::size_t>(to + c)] += weight * x.data[static_cast<std::size_t>(from + c)];
    }
  });
}

void avg_pool_backward(const Window& window, const In& dy, const Out& dx) {
  fill(dx, 0.0);
  const std::int64_t channels = dy.shape[3];
  const std::vector<double> counts = window_counts(window, dx.shape, dy.shape);
  for_each_tap(window, dx.shape, dy.shape, [&](std::int64_t from, std::int64_t to) {
    const double weight = 1.0 / counts[static_cast<std::size_t>(to / channels) % counts.size()];
    for (std::int64_t c = 0; c < channels; ++c) {
      dx.data[static_cast<std::size_t>(from + c)] += weight * dy.data[static_cast<std::size_t>(to + c)];
    }
  });
}

}  // namespace hvd::models::reference
