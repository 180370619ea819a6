// The figures of a cell as columns: their names in CSV, in JSON and in the store, and their values. A new figure is one
// row here, and a column of coll_cell in results/schema.sql. Pure functions.
#pragma once

#include <span>
#include <string_view>

#include "bench/coll/result.h"
#include "bench/store/sqlite_handle.h"

namespace hvd::bench::coll {

inline constexpr double kMicro = 1e6;  // from seconds to microseconds
inline constexpr double kGiga = 1e-9;  // from bytes per second to GB/s

struct CellColumn {
  std::string_view csv, json, stored;  ///< names; empty where this table does not write the column
  double factor = 1;                   ///< from the store's unit (seconds, bytes per second) to that of CSV and JSON
  /// Borrows texts from its arguments. Without a value the figure is unknown.
  Value (*value)(const CollResult& result, const CellResult& cell) = nullptr;

  /// Returns the value in the unit of CSV and JSON.
  [[nodiscard]] Value shown(const CollResult& result, const CellResult& cell) const;
};

/// Returns all columns, in the order of CSV.
std::span<const CellColumn> cell_columns();

}  // namespace hvd::bench::coll
