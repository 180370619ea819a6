#include "engine/base/hash.h"
#include "models/cudnn/kernels/grid.cuh"
#include "models/cudnn/kernels/input_element.h"

namespace hvd::models::cudnn::kernels {

void synthetic_batch(const Synthetic& work, const Matrix& images, std::int32_t* labels, Stream stream) {
  const std::int64_t count = work.samples * work.image_elements;
  with_type(images.type, "synthetic_batch", [&](auto* element) {
    using T = Pointee<decltype(element)>;
    // A batch may begin and end inside a block of four numbers, so it touches up to count / 4 + 2 blocks.
    for_each(SyntheticImagesBody<T>{work.seed, Hasher().text("images").value(), work.first_sample, work.image_elements,
                                    count, static_cast<T*>(images.data), images.channels, images.pitch},
             count / 4 + 2, stream, "synthetic_batch");
  });
  for_each(SyntheticLabelsBody{work.seed, Hasher().text("labels").value(), work.first_sample, work.classes, labels},
           work.samples, stream, "synthetic_batch");
}

}  // namespace hvd::models::cudnn::kernels
