#include "models/cudnn/kernels/avg_pool_element.h"
#include "models/cudnn/kernels/grid.cuh"
#include "models/cudnn/kernels/max_pool_element.h"

namespace hvd::models::cudnn::kernels {
namespace {

// Throws if the window is too large for `where`, which has one byte for an index in the window.
void check_window(const Window& window) {
  if (window.kernel_h * window.kernel_w <= 256) return;
  throw Error(Errc::kInvalidArgument, "kernel max_pool: a window of " + std::to_string(window.kernel_h) + " x " +
                                          std::to_string(window.kernel_w) + "; it takes up to 256 elements");
}

bool is_square(const Window& window, int kernel, int stride) {
  return window.kernel_h == kernel && window.kernel_w == kernel && window.stride_h == stride &&
         window.stride_w == stride;
}

// Calls `work` with std::true_type if there is an epilogue, else with std::false_type.
template <class Work>
void with_epilogue(const Epilogue& epilogue, const Work& work) {
  if (epilogue.add.data != nullptr || epilogue.test.data != nullptr) {
    work(std::true_type());
  } else {
    work(std::false_type());
  }
}

}  // namespace

void max_pool(const Window& window, const Image& x, const Image& y, std::uint8_t* where, Stream stream) {
  check_window(window);
  with_vectors(x.matrix.type, is_wide({&x.matrix, &y.matrix}), "max_pool", [&](auto* type, auto width) {
    using T = Pointee<decltype(type)>;
    constexpr int kWidth = decltype(width)::value;
    const auto launch = [&](const auto& body) {
      for_each_row(body, y.matrix.rows, y.matrix.channels, stream, "max_pool");
    };
    if (window.kernel_h == 3 && window.kernel_w == 3) return launch(MaxPoolBody<T, kWidth, 3>(window, x, y, where));
    if (window.kernel_h == 2 && window.kernel_w == 2) return launch(MaxPoolBody<T, kWidth, 2>(window, x, y, where));
    launch(MaxPoolBody<T, kWidth, 0>(window, x, y, where));
  });
}

void max_pool_backward(const Window& window, const std::uint8_t* where, const Image& dy, const Image& dx,
                       const Matrix& pooled, const Epilogue& epilogue, Stream stream) {
  check_window(window);
  const MaxPoolDiff from{window, where, dy, pooled};
  const bool wide = is_wide({&dy.matrix, &dx.matrix, &pooled, &epilogue.add, &epilogue.test});
  with_vectors(dx.matrix.type, wide, "max_pool_backward", [&](auto* type, auto width) {
    using T = Pointee<decltype(type)>;
    constexpr int kWidth = decltype(width)::value;
    const auto launch_tiles = [&](const auto& body) {
      for_each_row(body, body.rows(), dx.matrix.channels, stream, "max_pool_backward");
    };
    with_epilogue(epilogue, [&](auto finished) {
      constexpr bool kFinished = decltype(finished)::value;
      if (is_square(window, 3, 2)) {
        launch_tiles(MaxPoolBackwardTileBody<T, kWidth, 3, kFinished>(from, dx, epilogue));
      } else if (is_square(window, 2, 2)) {
        launch_tiles(MaxPoolBackwardTileBody<T, kWidth, 2, kFinished>(from, dx, epilogue));
      } else {
        for_each_row(MaxPoolBackwardBody<T, kWidth>(from, dx, epilogue), dx.matrix.rows, dx.matrix.channels, stream,
                     "max_pool_backward");
      }
    });
  });
}

void avg_pool(const Window& window, const Image& x, const Image& y, Stream stream) {
  with_vectors(x.matrix.type, is_wide({&x.matrix, &y.matrix}), "avg_pool", [&](auto* type, auto width) {
    using T = Pointee<decltype(type)>;
    constexpr int kWidth = decltype(width)::value;
    if (is_square(window, 3, 1)) {
      const AvgPoolStripBody<T, kWidth, false, false> body(window, x, y, {});
      for_each_row(body, body.rows(), y.matrix.channels, stream, "avg_pool");
    } else {
      for_each_row(AvgPoolBody<T, kWidth>(window, x, y), y.matrix.rows, y.matrix.channels, stream, "avg_pool");
    }
  });
}

void avg_pool_backward(const Window& window, const Image& dy, const Image& dx, const Epilogue& epilogue,
                       Stream stream) {
  const bool wide = is_wide({&dy.matrix, &dx.matrix, &epilogue.add, &epilogue.test});
  with_vectors(dx.matrix.type, wide, "avg_pool_backward", [&](auto* type, auto width) {
    using T = Pointee<decltype(type)>;
    constexpr int kWidth = decltype(width)::value;
    if (is_square(window, 3, 1)) {
      with_epilogue(epilogue, [&](auto finished) {
        const AvgPoolStripBody<T, kWidth, true, decltype(finished)::value> body(window, dy, dx, epilogue);
        for_each_row(body, body.rows(), dx.matrix.channels, stream, "avg_pool_backward");
      });
    } else {
      for_each_row(AvgPoolBackwardBody<T, kWidth>(window, dy, dx, epilogue), dx.matrix.rows, dx.matrix.channels, stream,
                   "avg_pool_backward");
    }
  });
}

void global_avg_pool(const Image& x, const Matrix& y, Stream stream) {
  with_vectors(y.type, is_wide({&x.matrix, &y}), "global_avg_pool", [&](auto* type, auto width) {
    for_each_row(GlobalAvgPoolBody<Pointee<decltype(type)>, decltype(width)::value>(x, y), y.rows, y.channels, stream,
                 "global_avg_pool");
  });
}

void global_avg_pool_backward(const Matrix& dy, const Image& dx, const Epilogue& epilogue, Stream stream) {
  const bool wide = is_wide({&dy, &dx.matrix, &epilogue.add, &epilogue.test});
  with_vectors(dx.matrix.type, wide, "global_avg_pool_backward", [&](auto* type, auto width) {
    for_each_row(GlobalAvgPoolBackwardBody<Pointee<decltype(type)>, decltype(width)::value>(dy, dx, epilogue),
                 dx.matrix.rows, dx.matrix.channels, stream, "global_avg_pool_backward");
  });
}

}  // namespace hvd::models::cudnn::kernels
