#include "engine/runtime/operations.h"

#include <fmt/format.h>

#include <cstring>
#include <numeric>
#include <string>

#include "engine/base/assert.h"
#include "engine/gpu/runtime.h"

namespace hvd {
namespace {

/// Returns the number of elements in one row of `shape`.
std::size_t row_count(const std::vector<std::int64_t>& shape) {
  return core::count_of({shape.begin() + 1, shape.end()}, "one row");
}

std::vector<std::size_t> counts_of(const std::vector<std::int64_t>& rows, std::size_t row_elements) {
  std::vector<std::size_t> counts;
  counts.reserve(rows.size());
  for (const std::int64_t count : rows) counts.push_back(static_cast<std::size_t>(count) * row_elements);
  return counts;
}

std::size_t sum(const std::vector<std::size_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

std::string input_of(const core::Batch& batch) { return fmt::format("tensor '{}'", batch.names.front()); }
std::string output_of(const core::Batch& batch) {
  return fmt::format("the output of {} of {}", core::name(batch.terms.kind), input_of(batch));
}

/// Returns `bytes` of new memory for an operand or a result, which `output` owns; null for 0 bytes. `what` names the
/// memory in errors. Errors: out_of_memory.
std::byte* allocate(const OperationContext& here, Output& output, std::size_t bytes, std::string_view what) {
  if (bytes == 0) return nullptr;
  gpu::GpuRuntime* const gpu = here.communicator.data().gpu();
  if (gpu == nullptr) {
    output.bytes.resize(bytes);
    return output.bytes.data();
  }
  output.device = gpu->allocate(bytes, what);
  return output.device->bytes.data();
}

/// Exchanges `split_rows` through rank 0's control plane, because a device's data plane moves only device memory.
std::vector<std::int64_t> rows_by_control(const OperationContext& here, const std::vector<std::int64_t>& split_rows) {
  comm::ControlPlane& control = here.communicator.control();
  comm::Bytes all;
  for (const comm::Bytes& message : control.gather(std::as_bytes(std::span(split_rows)), here.deadline)) {
    all.insert(all.end(), message.begin(), message.end());
  }
  all = control.broadcast(all, 0, here.deadline);
  const std::size_t ranks = split_rows.size();
  HVD_ASSERT(all.size() == ranks * ranks * sizeof(std::int64_t));
  const auto rank = static_cast<std::size_t>(here.communicator.topology().rank);
  std::vector<std::int64_t> rows(ranks);
  for (std::size_t from = 0; from < ranks; ++from) {
    std::memcpy(&rows[from], &all[(from * ranks + rank) * sizeof(std::int64_t)], sizeof(std::int64_t));
  }
  return rows;
}

/// Returns the number of rows that each rank sends to this rank, indexed by rank.
std::vector<std::int64_t> rows_sent_here(const OperationContext& here, const std::vector<std::int64_t>& split_rows) {
  if (here.communicator.data().gpu() != nullptr) return rows_by_control(here, split_rows);
  std::vector<std::int64_t> rows(split_rows.size());
  const std::vector<std::size_t> one_element(rows.size(), 1);
  here.communicator.data().all_to_all(rows.data(), one_element, split_rows.data(), one_element, DataType::kI64,
                                      here.deadline);
  return rows;
}

}  // namespace

std::vector<std::int64_t> share_rows(std::int64_t rows, int ranks) {
  std::vector<std::int64_t> shares(static_cast<std::size_t>(ranks), rows / ranks);
  for (std::int64_t rank = 0; rank < rows % ranks; ++rank) ++shares[static_cast<std::size_t>(rank)];
  return shares;
}

void gather_rows(const OperationContext& here, const core::Batch& batch, Operands& operands) {
  const auto counts = counts_of(batch.rows, row_count(operands.shape));
  operands.output.rows = batch.rows;
  std::byte* const out = allocate(here, operands.output, batch.bytes, output_of(batch));
  here.communicator.data().all_gather(out, operands.data, counts, batch.dtype, here.deadline);
}

void reduce_scatter_rows(const OperationContext& here, const core::Batch& batch, Operands& operands) {
  const comm::Topology& topology = here.communicator.topology();
  operands.output.rows = share_rows(operands.shape.front(), topology.size);
  const auto counts = counts_of(operands.output.rows, row_count(operands.shape));
  const std::size_t mine = counts[static_cast<std::size_t>(topology.rank)];
  std::byte* const out = allocate(here, operands.output, mine * size_of(batch.dtype), output_of(batch));
  const std::byte* in = operands.data;
  if (batch.terms.prescale != 1 && batch.bytes > 0) {
    std::byte* const scaled = allocate(here, operands.scaled, batch.bytes, "a scaled copy of " + input_of(batch));
    here.communicator.data().copy(scaled, in, batch.bytes);
    here.communicator.data().scale(scaled, sum(counts), batch.dtype, batch.terms.prescale);
    in = scaled;
  }
  here.communicator.data().reduce_scatter(out, in, counts, batch.dtype, batch.op, here.deadline);
  here.communicator.data().scale(out, mine, batch.dtype, batch.terms.postscale);
}

void exchange_rows(const OperationContext& here, const core::Batch& batch, Operands& operands) {
  operands.output.rows = rows_sent_here(here, operands.split_rows);
  const std::size_t row_elements = row_count(operands.shape);
  const auto receive = counts_of(operands.output.rows, row_elements);
  std::byte* const out = allocate(here, operands.output, sum(receive) * size_of(batch.dtype), output_of(batch));
  here.communicator.data().all_to_all(out, receive, operands.data, counts_of(operands.split_rows, row_elements),
                                      batch.dtype, here.deadline);
}

}  // namespace hvd
