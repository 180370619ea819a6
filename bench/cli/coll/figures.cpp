#include "bench/cli/coll/figures.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace hvd::bench::coll {

std::vector<Row> rows_of(const CollResult& result, MeasuredCollective collective, int variant) {
  std::vector<Row> rows;
  std::map<std::tuple<DataType, ReduceOp, std::size_t>, std::size_t> known;
  for (const CellResult& cell : result.cells) {
    const Problem& problem = cell.cell.problem;
    if (problem.collective != collective || cell.cell.variant != variant) continue;
    const auto [at, is_new] = known.emplace(std::tuple(problem.type, problem.op, problem.count), rows.size());
    if (is_new) rows.push_back({nullptr, nullptr});
    rows[at->second][problem.in_place ? 1 : 0] = &cell;
  }
  return rows;
}

bool measured(const CellResult* cell) { return cell != nullptr && cell->samples > 0; }

std::vector<ModelStep> model_steps(const CollOptions& options, const CollResult& result) {
  std::vector<ModelStep> steps;
  if (options.repeats.size() != options.sizes.size()) return steps;
  for (const MeasuredCollective collective : options.collectives) {
    if (collective == MeasuredCollective::kBarrier) continue;
    for (int variant = 0; variant < static_cast<int>(result.variants.size()); ++variant) {
      for (const ReduceOp op : reduces(collective) ? options.ops : std::vector{ReduceOp::kSum}) {
        ModelStep step{collective, variant, op};
        for (std::size_t form = 0; form < 2; ++form) {
          for (std::size_t i = 0; i < options.sizes.size(); ++i) {
            const Problem wanted = problem_of(collective, options.sizes[i], options.types.front(), op,
                                              {form == 1, options.ragged}, result.world.ranks);
            const auto cell = std::find_if(result.cells.begin(), result.cells.end(), [&](const CellResult& candidate) {
              return candidate.cell.variant == variant && candidate.cell.problem == wanted && candidate.samples > 0;
            });
            std::optional<double>& sum = step.seconds[form];
            if (cell == result.cells.end()) sum.reset();
            if (sum) *sum += static_cast<double>(options.repeats[i]) * cell->seconds.value;
          }
        }
        if (step.seconds[0] || step.seconds[1]) steps.push_back(step);
      }
    }
  }
  return steps;
}

ModelTotal model_total(const CollOptions& options) {
  ModelTotal total;
  for (std::size_t i = 0; i < options.repeats.size(); ++i) {
    total.buckets += options.repeats[i];
    total.bytes += options.repeats[i] * options.sizes[i];
  }
  return total;
}

std::uint64_t wrong_in_all(const CollResult& result) {
  std::uint64_t wrong = 0;
  for (const CellResult& cell : result.cells) wrong += cell.wrong.value_or(0);
  return wrong;
}

double average_bus_rate(const CollResult& result) {
  double sum = 0;
  std::size_t count = 0;
  for (const CellResult& cell : result.cells) {
    if (cell.samples == 0 || cell.cell.problem.collective == MeasuredCollective::kBarrier) continue;
    sum += cell.bus_rate * kGiga;
    ++count;
  }
  return count == 0 ? 0 : sum / static_cast<double>(count);
}

}  // namespace hvd::bench::coll
