#include "models/cudnn/kernels/grid.cuh"
#include "models/cudnn/kernels/sgd_element.h"

namespace hvd::models::cudnn::kernels {

void sgd(const Sgd& work, Stream stream) {
  with_type(work.gradient_type, "sgd", [&](auto* gradient) {
    with_type(work.copy == nullptr ? DataType::kF32 : work.copy_type, "sgd", [&](auto* copied) {
      using Body = SgdBody<Pointee<decltype(gradient)>, Pointee<decltype(copied)>>;
      if (work.count % Body::kDecayBlock != 0) {
        throw Error(Errc::kInvalidArgument, "kernel sgd: the arenas hold " + std::to_string(work.count) +
                                                " elements, not a multiple of " + std::to_string(Body::kDecayBlock));
      }
      for_each(Body{work}, work.count / Body::kVector, stream, "sgd");
    });
  });
}

void find_overflow(const void* gradients, DataType type, std::int64_t count, LossScale* loss_scale, Stream stream) {
  with_type(type, "find_overflow", [&](auto* element) {
    using Body = FindOverflowBody<Pointee<decltype(element)>>;
    for_each(Body{static_cast<const Pointee<decltype(element)>*>(gradients), loss_scale}, count / Body::kVector, stream,
             "find_overflow");
  });
}

void adjust_loss_scale(LossScale* loss_scale, std::int32_t growth_interval, Stream stream) {
  for_each(AdjustLossScaleBody{loss_scale, growth_interval}, 1, stream, "adjust_loss_scale");
}

}  // namespace hvd::models::cudnn::kernels
