#include "tests/comm/share_checks.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>

#include "tests/comm/reference.h"

namespace hvd::test {
namespace {

using comm::Communicator;

std::vector<std::size_t> offsets_of(const std::vector<std::size_t>& counts) {
  std::vector<std::size_t> offsets(counts.size() + 1);
  std::partial_sum(counts.begin(), counts.end(), offsets.begin() + 1);
  return offsets;
}

std::string agreed(Communicator& communicator, const ShareCase& c, const char* operation, const std::string& problem) {
  std::array<std::uint64_t, 1> bad{problem.empty() ? 0ULL : 1ULL};
  communicator.control().all_reduce_bits(bad, BitOp::kOr, soon());
  if (bad[0] == 0) return "";
  return std::string(operation) + " of " + c.text() + ": " + (problem.empty() ? "another rank is wrong" : problem);
}

/// Writes the bytes that rank `from` sends to rank `to`.
void write_block(std::span<std::byte> block, int from, int to) {
  for (std::size_t i = 0; i < block.size(); i += sizeof(std::uint64_t)) {
    const std::uint64_t word = random_bits(from * 64 + to, i);
    std::memcpy(block.data() + i, &word, std::min(sizeof word, block.size() - i));
  }
}

bool is_block(std::span<const std::byte> block, int from, int to) {
  std::vector<std::byte> expected(block.size());
  write_block(expected, from, to);
  return std::equal(block.begin(), block.end(), expected.begin());
}

}  // namespace

std::string ShareCase::text() const {
  std::string result = "[";
  for (const std::size_t count : counts) result += (result.size() == 1 ? "" : " ") + std::to_string(count);
  return result + "] x " + std::string(name(dtype)) + ", " + std::string(name(op)) +
         (memory == Memory::kRegistered ? ", registered" : ", plain") + (in_place ? ", in place" : "");
}

std::string check_reduce_scatter(Communicator& communicator, const ShareCase& c) {
  const int rank = communicator.topology().rank;
  const auto me = static_cast<std::size_t>(rank);
  const std::size_t element = size_of(c.dtype);
  const auto offsets = offsets_of(c.counts);
  const std::size_t own_bytes = c.counts[me] * element;
  std::vector<std::byte> mine(offsets.back() * element);
  write_input(mine.data(), {0, offsets.back()}, c.dtype, c.op, rank);
  const GuardedBuffer in(communicator, c.memory, mine.size(), mine.size());
  const GuardedBuffer separate(communicator, Memory::kPlain, own_bytes, own_bytes);
  std::byte* const out = c.in_place ? in.data() + offsets[me] * element : separate.data();
  std::array<std::uint64_t, 2> hashes{};
  std::string problem;
  for (std::uint64_t& hash : hashes) {
    std::copy(mine.begin(), mine.end(), in.data());
    communicator.data().reduce_scatter(out, in.data(), c.counts, c.dtype, c.op, soon());
    if (!c.in_place && !std::equal(mine.begin(), mine.end(), in.data())) problem = "the input has changed";
    if (!in.intact() || !separate.intact()) problem = "wrote past the end";
    hash = digest({out, own_bytes});
  }
  if (hashes[0] != hashes[1]) problem = "two runs have different bits";
  if (problem.empty()) {
    problem = compare_reduced(out, {offsets[me], c.counts[me]}, {c.dtype, c.op, communicator.topology().size});
  }
  return agreed(communicator, c, "reduce_scatter", problem);
}

std::string check_all_gather(Communicator& communicator, const ShareCase& c) {
  const int rank = communicator.topology().rank;
  const auto me = static_cast<std::size_t>(rank);
  const std::size_t element = size_of(c.dtype);
  const auto offsets = offsets_of(c.counts);
  const std::size_t own_bytes = c.counts[me] * element;
  const GuardedBuffer out(communicator, c.memory, offsets.back() * element, offsets.back() * element);
  const GuardedBuffer separate(communicator, c.memory, own_bytes,
                               *std::max_element(c.counts.begin(), c.counts.end()) * element);
  const std::span<std::byte> in(c.in_place ? out.data() + offsets[me] * element : separate.data(), own_bytes);
  std::string problem;
  for (int run = 0; run < 2; ++run) {
    std::fill(out.bytes().begin(), out.bytes().end(), std::byte{0});
    write_block(in, rank, run);
    communicator.data().all_gather(out.data(), in.data(), c.counts, c.dtype, soon());
    if (!is_block(in, rank, run)) problem = "the input has changed";
    if (!out.intact() || !separate.intact()) problem = "wrote past the end";
    for (std::size_t r = 0; r < c.counts.size(); ++r) {
      if (is_block(out.bytes().subspan(offsets[r] * element, c.counts[r] * element), static_cast<int>(r), run))
        continue;
      problem = "share of rank " + std::to_string(r);
    }
    // The next run overwrites the input. If the operation returned too early, a late peer would read the new input.
  }
  return agreed(communicator, c, "all_gather", problem);
}

std::string check_all_to_all(Communicator& communicator, const ShareCase& c) {
  const int rank = communicator.topology().rank;
  const std::size_t n = c.counts.size(), element = size_of(c.dtype);
  const auto count = [&](std::size_t from, std::size_t to) { return c.counts[from] * (to % 3 + from % 2) / 2; };
  std::vector<std::size_t> sent, received;
  for (std::size_t r = 0; r < n; ++r) {
    sent.push_back(count(static_cast<std::size_t>(rank), r));
    received.push_back(count(r, static_cast<std::size_t>(rank)));
  }
  // A block has at most 3/2 times as many elements as its sender's count.
  const std::size_t most = *std::max_element(c.counts.begin(), c.counts.end()) * n * 3 / 2;
  const auto from = offsets_of(sent);
  const auto to = offsets_of(received);
  const GuardedBuffer in(communicator, c.memory, from.back() * element, most * element);
  const GuardedBuffer out(communicator, Memory::kPlain, to.back() * element, to.back() * element);
  std::string problem;
  for (int run = 0; run < 2; ++run) {
    std::fill(out.bytes().begin(), out.bytes().end(), std::byte{0});
    for (std::size_t r = 0; r < n; ++r) {
      write_block(in.bytes().subspan(from[r] * element, sent[r] * element), rank + run, static_cast<int>(r));
    }
    const std::uint64_t before = digest(in.bytes());
    communicator.data().all_to_all(out.data(), received, in.data(), sent, c.dtype, soon());
    if (digest(in.bytes()) != before) problem = "the input has changed";
    if (!out.intact() || !in.intact()) problem = "wrote past the end";
    for (std::size_t s = 0; s < n; ++s) {
      const auto block = out.bytes().subspan(to[s] * element, received[s] * element);
      if (!is_block(block, static_cast<int>(s) + run, rank)) problem = "block of rank " + std::to_string(s);
    }
  }
  return agreed(communicator, c, "all_to_all", problem);
}

std::string check_same_bits_as_all_reduce(Communicator& communicator, const ShareCase& c) {
  const int rank = communicator.topology().rank;
  const auto me = static_cast<std::size_t>(rank);
  const std::size_t element = size_of(c.dtype);
  const auto offsets = offsets_of(c.counts);
  std::vector<std::byte> whole(offsets.back() * element);
  write_input(whole.data(), {0, offsets.back()}, c.dtype, c.op, rank);
  std::vector<std::byte> own(c.counts[me] * element);
  communicator.data().reduce_scatter(own.data(), whole.data(), c.counts, c.dtype, c.op, soon());
  communicator.data().all_reduce(whole.data(), offsets.back(), c.dtype, c.op, soon());
  const bool same = own.empty() || std::memcmp(own.data(), whole.data() + offsets[me] * element, own.size()) == 0;
  return agreed(communicator, c, "reduce_scatter", same ? "" : "other bits than all_reduce");
}

std::string check_share_matrix(Communicator& communicator) {
  constexpr std::size_t kLarge = 40009;  // elements on all ranks; too long for a slot even if an element has one byte
  const auto n = static_cast<std::size_t>(communicator.topology().size);
  std::vector<std::size_t> ragged, large;
  for (std::size_t r = 0; r < n; ++r) {
    ragged.push_back(r % 4 == 1 ? 0 : 3 * r + 1);
    large.push_back(r % 4 == 2 ? 0 : kLarge / n + 131 * r);
  }
  std::vector<std::size_t> one_sided(n);
  one_sided[n / 2] = kLarge / 2;
  std::vector<ShareCase> cases;
  for (std::size_t type = 0; type < kDataTypes; ++type) {
    const auto dtype = static_cast<DataType>(type);
    for (std::size_t op = 0; op < kReduceOps; ++op) {
      cases.push_back({std::vector<std::size_t>(n, 5), dtype, static_cast<ReduceOp>(op), Memory::kPlain, false});
    }
    const auto op = static_cast<ReduceOp>((type + 1) % kReduceOps);
    cases.push_back({ragged, dtype, op, Memory::kPlain, true});
    cases.push_back({large, dtype, op, type % 2 == 0 ? Memory::kPlain : Memory::kRegistered, type % 4 < 2});
  }
  for (const Memory memory : {Memory::kPlain, Memory::kRegistered}) {
    for (const bool in_place : {false, true}) {
      for (const auto& counts : {std::vector<std::size_t>(n, 0), std::vector<std::size_t>(n, 1), one_sided,
                                 std::vector<std::size_t>(n, kLarge / n)}) {
        cases.push_back({counts, DataType::kF32, ReduceOp::kSum, memory, in_place});
      }
    }
  }
  for (const ShareCase& c : cases) {
    std::string problem = check_reduce_scatter(communicator, c);
    // All-gather and all-to-all take no ReduceOp, so they run for only one operation.
    const bool first_op = c.op == ReduceOp::kSum || c.counts.front() != 5;
    if (problem.empty() && first_op) problem = check_all_gather(communicator, c);
    if (problem.empty() && first_op && !c.in_place) problem = check_all_to_all(communicator, c);
    if (!problem.empty()) return problem;
  }
  return {};
}

}  // namespace hvd::test
