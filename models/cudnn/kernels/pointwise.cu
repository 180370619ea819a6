#include <algorithm>

#include "engine/base/hash.h"
#include "models/cudnn/kernels/grid.cuh"
#include "models/cudnn/kernels/pointwise_element.h"

namespace hvd::models::cudnn::kernels {
namespace {

HVD_HOST_DEVICE float element(const void* data, DataType type, std::int64_t i) {
  switch (type) {
    case DataType::kF16: return to_float(static_cast<const Half*>(data)[i]);
    case DataType::kBF16: return to_float(static_cast<const Bfloat*>(data)[i]);
    default: return static_cast<const float*>(data)[i];
  }
}

HVD_HOST_DEVICE void set_element(void* data, DataType type, std::int64_t i, float value) {
  switch (type) {
    case DataType::kF16: static_cast<Half*>(data)[i] = from_float<Half>(value); return;
    case DataType::kBF16: static_cast<Bfloat*>(data)[i] = from_float<Bfloat>(value); return;
    default: static_cast<float*>(data)[i] = value; return;
  }
}

struct CopyAllBody {
  Copy entries[kMaxCopies];
  HVD_HOST_DEVICE std::int64_t count(std::size_t entry) const { return entries[entry].count; }
  HVD_HOST_DEVICE void operator()(std::size_t entry, std::int64_t i) const {
    const Copy& copy = entries[entry];
    set_element(copy.to, copy.to_type, i, element(copy.from, copy.from_type, i));
  }
};

// Returns true if NormSumBody can do `work`. Moves an input with a batch norm to the front, where NormSumBody needs it.
bool is_norm_sum(Pointwise& work) {
  if (work.inputs > 2 || work.bias != nullptr || work.dropout.used || work.test_norm.mean != nullptr) return false;
  if (work.inputs == 2 && work.norm[0].mean == nullptr) {  // a sum of two numbers does not depend on their order
    std::swap(work.input[0], work.input[1]);
    std::swap(work.norm[0], work.norm[1]);
  }
  return work.norm[0].mean == nullptr || work.test.data == nullptr;
}

template <class T, int V>
void norm_sum(const Pointwise& work, Stream stream) {
  const auto launch = [&](const auto& body) {
    for_each_row(body, work.out.rows, work.out.channels, stream, "pointwise");
  };
  const bool first = work.norm[0].mean != nullptr, second = work.inputs == 2 && work.norm[1].mean != nullptr;
  if (work.inputs == 1) {
    first ? launch(NormSumBody<T, V, 1, 1>(work)) : launch(NormSumBody<T, V, 1, 0>(work));
  } else if (second) {
    launch(NormSumBody<T, V, 2, 2>(work));
  } else {
    first ? launch(NormSumBody<T, V, 2, 1>(work)) : launch(NormSumBody<T, V, 2, 0>(work));
  }
}

void convert(const Matrix& from, const Matrix& to, Stream stream) {
  with_type(from.type, "copy", [&](auto* given) {
    with_type(to.type, "copy", [&](auto* wanted) {
      for_each_row(ConvertMatrixBody<Pointee<decltype(given)>, Pointee<decltype(wanted)>>{from, to}, to.rows,
                   to.channels, stream, "copy");
    });
  });
}

}  // namespace

void pointwise(const Pointwise& given, Stream stream) {
  Pointwise work = given;
  if (work.inputs < 1 || work.inputs > Pointwise::kMaxInputs) {
    throw Error(Errc::kInvalidArgument, "kernel pointwise: " + std::to_string(work.inputs) + " inputs; it takes 1 to " +
                                            std::to_string(Pointwise::kMaxInputs));
  }
  bool wide = is_wide({&work.out, &work.test});
  for (int i = 0; i < work.inputs; ++i) wide = wide && is_wide({&work.input[i]});
  wide = wide && reinterpret_cast<std::uintptr_t>(work.bias) % kVectorBytes == 0;
  const DropoutBody dropout{.seed = work.dropout.seed,
                            .hash = Hasher().text("dropout").number(work.dropout.stream).value(),
                            .dropped_below = static_cast<std::uint64_t>(work.dropout.rate * 0x1.0p32),
                            .scale = static_cast<float>(1.0 / (1.0 - work.dropout.rate)),
                            .rows_per_sample = work.dropout.rows_per_sample,
                            .step = work.dropout.step,
                            .first_sample = work.dropout.first_sample,
                            .features = work.out.channels};
  const bool plain = is_norm_sum(work);
  with_vectors(work.out.type, wide, "pointwise", [&](auto* type, auto width) {
    using T = Pointee<decltype(type)>;
    constexpr int kWidth = decltype(width)::value;
    if constexpr (kWidth > 1) {
      if (plain) return norm_sum<T, kWidth>(work, stream);
    }
    for_each_row(PointwiseBody<T, kWidth>{work, dropout}, work.out.rows, work.out.channels, stream, "pointwise");
  });
}

void copy(std::span<const Copy> copies, Stream stream) {
  while (!copies.empty()) {
    const std::span<const Copy> now = copies.first(std::min(copies.size(), kMaxCopies));
    copies = copies.subspan(now.size());
    CopyAllBody body{};
    std::copy(now.begin(), now.end(), body.entries);
    std::int64_t longest = 0;
    for (const Copy& entry : now) longest = std::max(longest, entry.count);
    for_each_of_each(body, now.size(), longest, stream, "copy");
  }
}

void copy(const Matrix& from, const Matrix& to, Stream stream) {
  if (from.type != to.type) return convert(from, to, stream);
  with_vectors(to.type, is_wide({&from, &to}), "copy", [&](auto* type, auto width) {
    for_each_row(CopyMatrixBody<Pointee<decltype(type)>, decltype(width)::value>{from, to}, to.rows, to.channels,
                 stream, "copy");
  });
}

}  // namespace hvd::models::cudnn::kernels
