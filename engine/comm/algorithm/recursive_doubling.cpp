#include "engine/comm/algorithm/recursive_doubling.h"

#include "engine/comm/algorithm/folding.h"
#include "engine/comm/reduce.h"

namespace hvd::comm {

void RecursiveDoubling::all_reduce(const Members& members, std::span<std::byte> data, const Combine& combine,
                                   const Wait& wait) {
  if (members.size() == 1 || data.empty()) return;
  if (scratch_.size() < data.size()) scratch_.resize(data.size());
  const std::span<std::byte> theirs(scratch_.data(), data.size());
  const Folding folding(members);
  folding.fold_in(transport_, data, theirs, combine, wait);
  if (folding.acts()) {
    const Members places = folding.places();
    for (std::size_t distance = 1; distance < places.size(); distance *= 2) {
      const std::size_t other = places.me ^ distance;
      const auto receive = transport_.receive(places.ranks[other], theirs);
      const auto send = transport_.send(places.ranks[other], data);
      transport_.wait(receive, wait);
      transport_.wait(send, wait);
      if (places.me < other) {
        combine(data.data(), data.data(), theirs.data());
      } else {
        combine(data.data(), theirs.data(), data.data());
      }
    }
  }
  folding.fold_out(transport_, data, wait);
}

void RecursiveDoubling::all_reduce(const Members& members, std::byte* data, std::size_t count, DataType dtype,
                                   ReduceOp op, int divisor, const Wait& wait) {
  all_reduce(
      members, {data, count * size_of(dtype)},
      [&](std::byte* into, const std::byte* first, const std::byte* second) {
        reduce_pair(into, first, second, count, dtype, op);
      },
      wait);
  divide(data, count, dtype, divisor);
}

}  // namespace hvd::comm
