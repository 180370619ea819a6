#include "bench/coll/columns.h"

#include "bench/store/run_writer.h"

namespace hvd::bench::coll {
namespace {

using ResultRef = const CollResult&;
using CellRef = const CellResult&;

/// An operation that took less time than the clock can tell has no time.
Value clocked(double seconds) { return seconds > 0 ? Value(seconds) : Value(); }
/// Ends of the interval; NaN, which is no value, if there are too few samples.
Value clocked(CellRef cell, double end) { return cell.seconds.value > 0 ? Value(end) : Value(); }

// Names in CSV, in JSON and in the store.
constexpr CellColumn kColumns[] = {
    {"collective", "", "operation", 1,
     [](ResultRef, CellRef cell) -> Value { return name(cell.cell.problem.collective); }},
    {"variant", "", "side", 1,
     [](ResultRef result, CellRef cell) -> Value {
       return result.variants[static_cast<std::size_t>(cell.cell.variant)];
     }},
    {"data_plane", "", "data_plane", 1, [](ResultRef, CellRef cell) -> Value { return cell.plane; }},
    {"size", "", "bytes", 1, [](ResultRef, CellRef cell) -> Value { return cell.bytes; }},
    {"count", "", "count", 1, [](ResultRef, CellRef cell) -> Value { return cell.cell.problem.count; }},
    {"type", "", "type", 1, [](ResultRef, CellRef cell) -> Value { return nccl_name(cell.cell.problem.type); }},
    {"redop", "", "reduction", 1, [](ResultRef, CellRef cell) -> Value { return reduction_name(cell.cell.problem); }},
    {"", "", "root", 1, [](ResultRef, CellRef cell) -> Value { return root_of(cell.cell.problem); }},
    {"in_place", "", "in_place", 1, [](ResultRef, CellRef cell) -> Value { return cell.cell.problem.in_place; }},
    {"ragged", "", "ragged", 1, [](ResultRef, CellRef cell) -> Value { return cell.cell.problem.ragged; }},
    {"time_us", "time", "seconds", kMicro, [](ResultRef, CellRef cell) { return clocked(cell.seconds.value); }},
    {"time_low_us", "time_low", "seconds_low", kMicro,
     [](ResultRef, CellRef cell) { return clocked(cell, cell.seconds.low); }},
    {"time_high_us", "time_high", "seconds_high", kMicro,
     [](ResultRef, CellRef cell) { return clocked(cell, cell.seconds.high); }},
    {"time_min_us", "", "", kMicro, [](ResultRef, CellRef cell) { return clocked(cell.spread.minimum); }},
    {"time_max_us", "", "", kMicro, [](ResultRef, CellRef cell) { return clocked(cell.spread.maximum); }},
    {"time_p99_us", "", "", kMicro, [](ResultRef, CellRef cell) { return clocked(cell.spread.percentile_99); }},
    {"cv_pct", "", "", 100, [](ResultRef, CellRef cell) -> Value { return cell.spread.variation(); }},
    {"transfer_us", "transfer_time", "transfer_seconds", kMicro,
     [](ResultRef, CellRef cell) -> Value { return cell.transfer; }},
    {"skew_us", "skew", "skew_seconds", kMicro, [](ResultRef, CellRef cell) -> Value { return cell.skew; }},
    {"last_rank", "last_rank", "last_rank", 1, [](ResultRef, CellRef cell) -> Value { return cell.last_rank; }},
    {"last_rank_share", "last_rank_share", "last_rank_share", 1,
     [](ResultRef, CellRef cell) -> Value { return cell.last_share; }},
    {"algbw", "alg_bw", "algorithm_bytes_per_second", kGiga,
     [](ResultRef, CellRef cell) -> Value { return cell.algorithm_rate; }},
    {"busbw", "bus_bw", "bus_bytes_per_second", kGiga, [](ResultRef, CellRef cell) -> Value { return cell.bus_rate; }},
    {"bound", "bound", "bound", 1,
     [](ResultRef, CellRef cell) -> Value { return cell.seconds.value > 0 ? Value(cell.bound) : Value(); }},
    {"ratio", "ratio", "ratio", 1, [](ResultRef, CellRef cell) -> Value { return part(cell.ratio, &Estimate::value); }},
    {"ratio_low", "ratio_low", "ratio_low", 1,
     [](ResultRef, CellRef cell) -> Value { return part(cell.ratio, &Estimate::low); }},
    {"ratio_high", "ratio_high", "ratio_high", 1,
     [](ResultRef, CellRef cell) -> Value { return part(cell.ratio, &Estimate::high); }},
    {"wrong", "nwrong", "wrong", 1, [](ResultRef, CellRef cell) -> Value { return cell.wrong; }},
    {"samples", "samples", "samples", 1, [](ResultRef, CellRef cell) -> Value { return cell.samples; }},
    {"operations_per_sample", "operations_per_sample", "operations_per_sample", 1,
     [](ResultRef, CellRef cell) -> Value { return cell.batch; }},
    {"", "", "settled", 1, [](ResultRef, CellRef cell) -> Value { return cell.settled; }},
    {"stop_reason", "stop_reason", "stop_reason", 1, [](ResultRef, CellRef cell) -> Value { return cell.stop_reason; }},
};

}  // namespace

Value CellColumn::shown(const CollResult& result, const CellResult& cell) const {
  Value own = value(result, cell);
  if (auto* number = std::get_if<double>(&own.held)) *number *= factor;
  return own;
}

std::span<const CellColumn> cell_columns() { return kColumns; }

}  // namespace hvd::bench::coll
