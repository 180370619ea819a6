// One cell (configuration) to measure, as text and as values, and the command line of a measurement. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "bench/peers/collectives.h"

namespace hvd::peers {

struct Cell {
  std::string text;  ///< OPERATION/TYPE/BYTES/in|out/CALLS
  Collective operation = Collective::kAllReduce;
  Type type = Type::kF32;
  std::size_t bytes = 0;  ///< size of the input or the output, whichever is larger; 0 for barrier
  bool in_place = false;
  std::size_t calls = 1;  ///< operations per sample, each on its own buffer
};

/// Errors: std::invalid_argument; the text names the cell and its fault.
Cell parse_cell(const std::string& text);

struct Request {
  std::string page;
  std::size_t samples = 0;
  double cell_seconds = 0;     ///< time limit of a cell, after which no sample starts
  std::size_t pool_bytes = 0;  ///< buffers rotate through at least this many bytes
  std::uint64_t seed = 0;
  bool corrupt = false;
  std::vector<Cell> cells;  ///< in the order in which they are measured
};

/// Errors: std::invalid_argument.
Request parse_request(int argc, const char* const* argv);

std::size_t size_of(Type type);

}  // namespace hvd::peers
