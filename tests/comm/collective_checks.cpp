#include "tests/comm/collective_checks.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tests/comm/reference.h"

namespace hvd::test {
namespace {

using comm::Bytes;
using comm::Communicator;

std::string same_everywhere(Communicator& communicator, std::uint64_t value) {
  // If two ranks differ in a bit, the AND clears this bit in the first word or in the second.
  std::array<std::uint64_t, 2> words{value, ~value};
  communicator.control().all_reduce_bits(words, BitOp::kAnd, soon());
  return words[0] == value && words[1] == ~value ? "" : "ranks have different bits";
}

}  // namespace

std::string AllReduceCase::text() const {
  return std::to_string(count) + " x " + std::string(name(dtype)) + ", " + std::string(name(op)) +
         (memory == Memory::kRegistered ? ", registered" : ", plain") + (out_of_place ? ", out of place" : "");
}

std::string check_all_reduce(Communicator& communicator, const AllReduceCase& c) {
  const int size = communicator.topology().size, rank = communicator.topology().rank;
  const std::size_t bytes = c.count * size_of(c.dtype);
  std::vector<std::byte> mine(bytes);
  write_input(mine.data(), {0, c.count}, c.dtype, c.op, rank);
  const GuardedBuffer buffer(communicator, c.memory, bytes, bytes);
  const GuardedBuffer separate(communicator, Memory::kPlain, c.out_of_place ? bytes : 0, 0);
  std::byte* const result = c.out_of_place ? separate.data() : buffer.data();
  std::array<std::uint64_t, 2> hashes{};
  std::string problem;
  for (std::uint64_t& hash : hashes) {
    std::copy(mine.begin(), mine.end(), buffer.data());
    if (c.out_of_place) {
      communicator.data().all_reduce_into(result, buffer.data(), c.count, c.dtype, c.op, soon());
      if (!std::equal(mine.begin(), mine.end(), buffer.data())) problem = "the input has changed";
    } else {
      communicator.data().all_reduce(result, c.count, c.dtype, c.op, soon());
    }
    if (!buffer.intact() || !separate.intact()) problem = "wrote past the end";
    hash = digest({result, bytes});
  }
  // same_everywhere() is collective, so even a rank that has already found a fault calls it.
  const std::string differ = same_everywhere(communicator, hashes[0]);
  if (problem.empty()) problem = differ;
  if (problem.empty() && hashes[0] != hashes[1]) problem = "two runs have different bits";
  // All ranks have the same bits here, so only rank 0 compares its result with the reference.
  if (problem.empty() && rank == 0) problem = compare_reduced(result, {0, c.count}, {c.dtype, c.op, size});
  return problem.empty() ? "" : c.text() + ": " + problem;
}

std::string check_all_reduce_matrix(Communicator& communicator, bool large) {
  std::vector<AllReduceCase> cases;
  for (const Memory memory : {Memory::kPlain, Memory::kRegistered}) {
    for (const std::size_t count : {0U, 1U, 7U, 1000U, 20011U}) {
      for (std::size_t type = 0; type < kDataTypes; ++type) {
        for (std::size_t op = 0; op < kReduceOps; ++op) {
          // Runs every pair of type and operation with 7 elements. Other lengths run one operation per type.
          if (count != 7 && op != (type + count) % kReduceOps) continue;
          cases.push_back({count, static_cast<DataType>(type), static_cast<ReduceOp>(op), memory});
        }
        if (count != 7 && count != 20011) continue;
        const auto op = static_cast<ReduceOp>((type + count + 1) % kReduceOps);
        cases.push_back({count, static_cast<DataType>(type), op, memory, true});
      }
    }
    if (large) {
      cases.push_back({300007, DataType::kF32, ReduceOp::kSum, memory});
      cases.push_back({600011, DataType::kBF16, ReduceOp::kAverage, memory});
      cases.push_back({300007, DataType::kI64, ReduceOp::kSum, memory, true});
    }
  }
  for (const AllReduceCase& c : cases) {
    if (std::string problem = check_all_reduce(communicator, c); !problem.empty()) return problem;
  }
  return {};
}

std::string check_control_plane(Communicator& communicator) {
  comm::ControlPlane& control = communicator.control();
  const int size = communicator.topology().size, rank = communicator.topology().rank;
  control.barrier(soon());

  for (const std::size_t length : {1U, 16U, 5000U}) {  // 5000 words are longer than a slot
    std::vector<std::uint64_t> ones(length, ~0ULL), zeros(length, 0);
    for (std::size_t i = 0; i < length; ++i) {
      ones[i] = ~(1ULL << (static_cast<unsigned>(rank) % 64U));
      zeros[i] = 1ULL << (static_cast<unsigned>(rank) % 64U);
    }
    control.all_reduce_bits(ones, BitOp::kAnd, soon());
    control.all_reduce_bits(zeros, BitOp::kOr, soon());
    const std::uint64_t all = size >= 64 ? ~0ULL : (1ULL << size) - 1U;
    for (std::size_t i = 0; i < length; ++i) {
      if (ones[i] != ~all || zeros[i] != all) return "all_reduce_bits of " + std::to_string(length) + " words is wrong";
    }
  }

  const auto message_of = [](int sender, std::size_t scale) {
    Bytes message(static_cast<std::size_t>(sender) * scale);
    for (std::size_t i = 0; i < message.size(); ++i) message[i] = static_cast<std::byte>(random_bits(sender, i));
    return message;
  };
  for (const std::size_t scale : {0U, 3U, 40000U}) {
    const auto all = control.gather(message_of(rank, scale), soon());
    if (rank != 0 && !all.empty()) return "gather gave messages to another rank than 0";
    if (rank != 0) continue;
    if (all.size() != static_cast<std::size_t>(size)) return "gather gave the wrong number of messages";
    for (int r = 0; r < size; ++r) {
      if (all[static_cast<std::size_t>(r)] != message_of(r, scale))
        return "gather: message of rank " + std::to_string(r);
    }
  }
  for (int root = 0; root < size; ++root) {
    for (const std::size_t scale : {0U, 5U, 40000U}) {
      const Bytes mine = rank == root ? message_of(root + 1, scale) : Bytes{};
      if (control.broadcast(mine, root, soon()) != message_of(root + 1, scale)) {
        return "broadcast of scale " + std::to_string(scale) + " from rank " + std::to_string(root);
      }
    }
  }
  return {};
}

std::string check_data_broadcast(Communicator& communicator, std::size_t bytes) {
  const int rank = communicator.topology().rank, last = communicator.topology().size - 1;
  // Large messages take the same path as small ones, so large broadcasts are checked only from the first and last rank.
  for (int root = 0; root <= last; root += bytes > 100000 ? std::max(last, 1) : 1) {
    std::vector<std::byte> expected(bytes);
    for (std::size_t i = 0; i < bytes; i += sizeof(std::uint64_t)) {
      const std::uint64_t word = random_bits(root, i);
      std::memcpy(expected.data() + i, &word, std::min(sizeof(word), bytes - i));
    }
    std::vector<std::byte> mine = rank == root ? expected : std::vector<std::byte>(bytes);
    communicator.data().broadcast(mine.data(), bytes, root, soon());
    if (bytes > 0 && std::memcmp(mine.data(), expected.data(), bytes) != 0)
      return std::to_string(bytes) + " bytes from rank " + std::to_string(root);
  }
  return {};
}

}  // namespace hvd::test
