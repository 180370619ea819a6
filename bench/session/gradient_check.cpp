#include "bench/session/gradient_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "engine/base/assert.h"
#include "engine/base/float16.h"
#include "engine/base/philox.h"
#include "engine/comm/communicator.h"

namespace hvd::bench {
namespace {

constexpr std::size_t kBytesPerRank = std::size_t{256} << 20;
constexpr std::size_t kBytesOfAllRanks = std::size_t{1} << 30;
constexpr std::size_t kMessageBytesOfAllRanks = std::size_t{64} << 20;

double unit_roundoff(DataType type) {
  switch (type) {
    case DataType::kF64: return 0x1p-53;
    case DataType::kF16: return 0x1p-11;
    case DataType::kBF16: return 0x1p-8;
    default: return 0x1p-24;
  }
}

// Distance between subnormal numbers. Below the smallest normal number, rounding errors are absolute.
double smallest_step(DataType type) {
  switch (type) {
    case DataType::kF64: return std::numeric_limits<double>::denorm_min();
    case DataType::kF16: return 0x1p-24;
    case DataType::kBF16: return 0x1p-133;
    default: return 0x1p-149;
  }
}

template <class T>
T load(std::span<const std::byte> data, std::size_t index) {
  T value;
  std::memcpy(&value, data.data() + index * sizeof(T), sizeof(T));
  return value;
}

struct Expected {
  double sum = 0, magnitude = 0;
};

Expected add_up(std::span<const std::span<const std::byte>> local, DataType type, std::size_t index) {
  Expected expected;
  for (const std::span<const std::byte> rank : local) {
    const double value = element_value(rank, type, index);
    expected.sum += value;
    expected.magnitude += std::abs(value);
  }
  return expected;
}

std::string difference(std::size_t index, double got, double wanted, double bound) {
  return fmt::format("element {} is {:.9g}, an independent reduction gives {:.9g} (rounding allows {:.2g})", index, got,
                     wanted, bound);
}

// Number of elements in a message that holds the pieces back to back.
std::size_t total_elements(std::span<const GradientPiece> pieces) {
  std::size_t total = 0;
  for (const GradientPiece& piece : pieces) total += piece.count;
  return total;
}

// Compares the pieces of one message. Describes the first bad piece, or returns "".
std::string compare_message(std::span<const GradientPiece> pieces, const std::vector<comm::Bytes>& ranks,
                            Trainer& trainer) {
  const models::TrainStep& step = trainer.train_step();
  const DataType type = step.gradient_type();
  const std::size_t element = size_of(type);
  std::size_t at = 0;
  for (const GradientPiece& piece : pieces) {
    const std::size_t bytes = piece.count * element;
    std::vector<std::span<const std::byte>> local(ranks.size());
    for (std::size_t r = 0; r < ranks.size(); ++r) local[r] = std::span(ranks[r]).subspan(at, bytes);
    const std::span<const std::byte> reduced = trainer.gradients(piece.offset * element, bytes);
    if (std::string wrong = compare_piece(local, reduced, type, trainer.sum_type(), Trainer::kReduction);
        !wrong.empty()) {
      const models::ArenaSlot& slot = step.slots()[piece.parameter];
      return fmt::format("gradient of {}, from its element {}: {}", slot.name, piece.offset - slot.offset, wrong);
    }
    at += bytes;
  }
  return {};
}

// Collective. Gathers the local pieces, a few at a time. Rank 0 compares the pieces and returns what is wrong, or "".
std::string compare_on_root(Trainer& trainer, std::span<const GradientPiece> pieces, std::span<const std::byte> rest) {
  Engine& engine = trainer.engine();
  const std::size_t element = size_of(trainer.train_step().gradient_type());
  const std::size_t message_bytes = kMessageBytesOfAllRanks / static_cast<std::size_t>(engine.size());
  std::string wrong;
  while (!pieces.empty()) {
    std::size_t take = 0;
    std::size_t bytes = 0;
    while (take < pieces.size() && (take == 0 || bytes + pieces[take].count * element <= message_bytes)) {
      bytes += pieces[take++].count * element;
    }
    const std::vector<comm::Bytes> ranks = engine.gather(rest.first(bytes));
    if (engine.rank() == 0 && wrong.empty()) {
      wrong = compare_message(pieces.first(take), ranks, trainer);
    }
    rest = rest.subspan(bytes);
    pieces = pieces.subspan(take);
  }
  return wrong;
}

}  // namespace

double element_value(std::span<const std::byte> data, DataType type, std::size_t index) {
  switch (type) {
    case DataType::kF32: return static_cast<double>(load<float>(data, index));
    case DataType::kF64: return load<double>(data, index);
    case DataType::kF16: return static_cast<double>(fp16_to_float(load<std::uint16_t>(data, index)));
    case DataType::kBF16: return static_cast<double>(bf16_to_float(load<std::uint16_t>(data, index)));
    default: break;
  }
  HVD_ASSERT(!"gradients are floating-point numbers");
  return 0;
}

std::vector<GradientPiece> choose_pieces(std::span<const models::ArenaSlot> slots, std::size_t budget_elements,
                                         std::uint64_t seed, std::size_t piece_elements) {
  std::size_t all = 0;
  for (const models::ArenaSlot& slot : slots) all += slot.count;
  const double share = all == 0 ? 1 : static_cast<double>(budget_elements) / static_cast<double>(all);
  const Philox chance(seed, 0x677261646965ULL);
  std::vector<GradientPiece> pieces;
  std::uint64_t draw = 0;
  for (std::size_t p = 0; p < slots.size(); ++p) {
    for (std::size_t at = 0; at < slots[p].count; at += piece_elements) {
      const std::size_t count = std::min(piece_elements, slots[p].count - at);
      const bool end = at == 0 || at + count == slots[p].count;
      const bool drawn = static_cast<double>(chance.uniform(draw++)) < share;
      if (end || drawn) pieces.push_back({p, slots[p].offset + at, count});
    }
  }
  return pieces;
}

std::string compare_piece(std::span<const std::span<const std::byte>> local, std::span<const std::byte> reduced,
                          DataType type, DataType sum_type, ReduceOp op) {
  const auto ranks = static_cast<double>(local.size());
  const double scale = op == ReduceOp::kAverage ? 1 / ranks : 1;
  for (std::size_t i = 0; i < reduced.size() / size_of(type); ++i) {
    const Expected expected = add_up(local, type, i);
    const double wanted = expected.sum * scale;
    const double bound = (ranks + 2) * (unit_roundoff(sum_type) * expected.magnitude * scale + smallest_step(sum_type));
    const double got = element_value(reduced, type, i);
    if (!std::isfinite(expected.magnitude)) {
      const auto bad = std::find_if(local.begin(), local.end(), [&](std::span<const std::byte> rank) {
        return !std::isfinite(element_value(rank, type, i));
      });
      return fmt::format("element {} is not a finite number on rank {} before the reduction", i, bad - local.begin());
    }
    if (!(std::abs(got - wanted) <= bound)) return difference(i, got, wanted, bound);
  }
  return {};
}

CheckOutcome check_reduction(Trainer& trainer, std::uint64_t seed) {
  const models::TrainStep& step = trainer.train_step();
  const auto world = static_cast<std::size_t>(trainer.engine().size());
  const std::size_t budget = std::min(kBytesPerRank, kBytesOfAllRanks / world) / size_of(step.gradient_type());
  const std::vector<GradientPiece> pieces = choose_pieces(step.slots(), budget, seed);

  std::vector<std::byte> local(total_elements(pieces) * size_of(step.gradient_type()));
  std::string wrong;
  const StepProbe probe{pieces, local, [&] { wrong = compare_on_root(trainer, pieces, local); }};
  trainer.step(Phase::kFull, &probe);
  if (!wrong.empty()) return {false, "rank 0: " + wrong};

  std::size_t all = 0;
  for (const models::ArenaSlot& slot : step.slots()) all += slot.count;
  const double share = 100.0 * static_cast<double>(total_elements(pieces)) / static_cast<double>(all);
  return {true, fmt::format("gradients equal an independent sum ({:.0f} % of {} elements)", share, all)};
}

std::string checksum_difference(std::span<const std::vector<std::uint64_t>> ranks,
                                std::span<const models::ArenaSlot> slots) {
  std::vector<std::size_t> differ;
  std::size_t first_parameter = slots.size();
  for (std::size_t r = 1; r < ranks.size(); ++r) {
    HVD_ASSERT(ranks[r].size() == ranks[0].size());
    const auto place = std::mismatch(ranks[0].begin(), ranks[0].end(), ranks[r].begin()).first;
    if (place == ranks[0].end()) continue;
    differ.push_back(r);
    first_parameter = std::min(first_parameter, static_cast<std::size_t>(place - ranks[0].begin()));
  }
  if (differ.empty()) return {};
  constexpr std::size_t kNamed = 8;
  std::string text = differ.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < std::min(differ.size(), kNamed); ++i) {
    if (i > 0) text += i + 1 == differ.size() ? " and " : ", ";
    text += std::to_string(differ[i]);
  }
  if (differ.size() > kNamed) text += fmt::format(" and {} more", differ.size() - kNamed);
  return fmt::format("{} {} from rank 0 in {}", text, differ.size() == 1 ? "differs" : "differ",
                     slots[first_parameter].name);
}

}  // namespace hvd::bench
