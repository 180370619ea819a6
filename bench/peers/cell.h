// What one measurement is of, as text and as values, and how the samples of a launch are asked for. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "bench/peers/collectives.h"

namespace hvd::peers {

struct Cell {
  std::string text;  ///< OPERATION/TYPE/BYTES/in|out/CALLS
  Operation operation = Operation::kAllReduce;
  Type type = Type::kF32;
  std::size_t bytes = 0;  ///< of the larger side; 0 for barrier
  bool in_place = false;
  std::size_t calls = 1;  ///< operations per sample, each on a buffer of its own
};

/// Errors: std::invalid_argument that names the cell and what is wrong with it.
Cell parse_cell(const std::string& text);

struct Request {
  std::string meeting;
  std::size_t samples = 0;
  double cell_seconds = 0;     ///< no sample of a cell begins later
  std::size_t pool_bytes = 0;  ///< buffers rotate through at least so much
  std::uint64_t seed = 0;
  bool corrupt = false;
  std::vector<Cell> cells;  ///< in the order in which they are measured
};

/// Errors: std::invalid_argument.
Request parse_request(int argc, const char* const* argv);

std::size_t size_of(Type type);

}  // namespace hvd::peers
