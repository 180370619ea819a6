#include "models/cudnn/kernels/grid.cuh"

namespace hvd::models::cudnn::kernels {
namespace {

// `where` holds the index of a tap in one byte.
void check_window(const Window& window) {
  if (window.kernel_h * window.kernel_w <= 256) return;
  throw Error(Errc::kInvalidArgument, "kernel max_pool: a window of " + std::to_string(window.kernel_h) + " x " +
                                          std::to_string(window.kernel_w) + "; it takes up to 256 elements");
}

// Launches Body<T, V>{...} for every vector of `out`.
template <template <class, int> class Body, class... Arguments>
void launch(const char* kernel, const Matrix& out, bool wide, Stream stream, const Arguments&... arguments) {
  with_vectors(out.type, wide, kernel, [&](auto* type, auto width) {
    constexpr int kWidth = decltype(width)::value;
    for_each(Body<Pointee<decltype(type)>, kWidth>{arguments...}, out.rows * (out.channels / kWidth), stream, kernel);
  });
}

}  // namespace

void max_pool(const Window& window, const Image& x, const Image& y, std::uint8_t* where, Stream stream) {
  check_window(window);
  launch<MaxPoolBody>("max_pool", y.matrix, is_wide({&x.matrix, &y.matrix}), stream, window, x, y, where);
}

void avg_pool(const Window& window, const Image& x, const Image& y, Stream stream) {
  launch<AvgPoolBody>("avg_pool", y.matrix, is_wide({&x.matrix, &y.matrix}), stream, window, x, y);
}

void global_avg_pool(const Image& x, const Matrix& y, Stream stream) {
  launch<GlobalAvgPoolBody>("global_avg_pool", y, is_wide({&x.matrix, &y}), stream, x, y);
}

void max_pool_backward(const Window& window, const std::uint8_t* where, const Image& dy, const Image& dx,
                       const Matrix& pooled, const Epilogue& epilogue, Stream stream) {
  check_window(window);
  launch<MaxPoolBackwardBody>("max_pool_backward", dx.matrix,
                              is_wide({&dy.matrix, &dx.matrix, &pooled, &epilogue.add, &epilogue.test}), stream, window,
                              where, dy, dx, pooled, epilogue);
}

void avg_pool_backward(const Window& window, const Image& dy, const Image& dx, const Epilogue& epilogue,
                       Stream stream) {
  launch<AvgPoolBackwardBody>("avg_pool_backward", dx.matrix,
                              is_wide({&dy.matrix, &dx.matrix, &epilogue.add, &epilogue.test}), stream, window, dy, dx,
                              epilogue);
}

void global_avg_pool_backward(const Matrix& dy, const Image& dx, const Epilogue& epilogue, Stream stream) {
  launch<GlobalAvgPoolBackwardBody>("global_avg_pool_backward", dx.matrix,
                                    is_wide({&dy, &dx.matrix, &epilogue.add, &epilogue.test}), stream, dy, dx,
                                    epilogue);
}

}  // namespace hvd::models::cudnn::kernels
