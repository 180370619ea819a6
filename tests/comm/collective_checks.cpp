#include "tests/comm/collective_checks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "engine/base/float16.h"

namespace hvd::test {
namespace {

using comm::Bytes;
using comm::Communicator;

constexpr std::byte kGuard{0xa5};
constexpr std::size_t kGuardBytes = 64;

Deadline soon() { return Deadline::after(std::chrono::seconds(60)); }

std::uint64_t mix(std::uint64_t x) {  // splitmix64, Steele et al. 2014
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

std::uint64_t random_bits(int rank, std::size_t i) { return mix(static_cast<std::uint64_t>(rank) * 1000003U + i); }
double random_unit(int rank, std::size_t i) {
  return static_cast<double>(random_bits(rank, i) >> 11) * 0x1p-52 - 1.0;  // [-1, 1)
}

/// A word at a time, because ThreadSanitizer looks at every access.
std::uint64_t digest(std::span<const std::byte> bytes) {
  std::uint64_t state = bytes.size();
  for (std::size_t i = 0; i < bytes.size(); i += sizeof(state)) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, std::min(sizeof(word), bytes.size() - i));
    state = mix(state ^ word);
  }
  return state;
}

template <class T>
void put(std::byte* at, std::size_t i, T value) {
  std::memcpy(at + i * sizeof(T), &value, sizeof(T));
}
template <class T>
T get(const std::byte* at, std::size_t i) {
  T value;
  std::memcpy(&value, at + i * sizeof(T), sizeof(T));
  return value;
}

void write_value(std::byte* at, std::size_t i, DataType dtype, int rank) {
  switch (dtype) {
    case DataType::kF32: return put(at, i, static_cast<float>(random_unit(rank, i)));
    case DataType::kF64: return put(at, i, random_unit(rank, i));
    case DataType::kF16: return put(at, i, float_to_fp16(static_cast<float>(random_unit(rank, i))));
    case DataType::kBF16: return put(at, i, float_to_bf16(static_cast<float>(random_unit(rank, i))));
    case DataType::kI32: return put(at, i, static_cast<std::int32_t>(random_bits(rank, i)));
    case DataType::kI64: return put(at, i, static_cast<std::int64_t>(random_bits(rank, i)));
    case DataType::kU8: return put(at, i, static_cast<std::uint8_t>(random_bits(rank, i)));
  }
}

long double read_float(const std::byte* at, std::size_t i, DataType dtype) {
  switch (dtype) {
    case DataType::kF32: return get<float>(at, i);
    case DataType::kF64: return get<double>(at, i);
    case DataType::kF16: return fp16_to_float(get<std::uint16_t>(at, i));
    default: return bf16_to_float(get<std::uint16_t>(at, i));
  }
}

/// Unit roundoff.
long double roundoff(DataType dtype) {
  switch (dtype) {
    case DataType::kF64: return 0x1p-53L;
    case DataType::kF32: return 0x1p-24L;
    case DataType::kF16: return 0x1p-11L;
    default: return 0x1p-8L;
  }
}

/// Half the spacing of subnormals: what a rounding costs at least, however small the value.
long double underflow(DataType dtype) { return dtype == DataType::kF16 ? 0x1p-25L : 0.0L; }

template <class T>
std::string compare_integers(const std::vector<std::byte>& serial, const std::byte* result, std::size_t count, int size,
                             ReduceOp op) {
  using U = std::make_unsigned_t<T>;
  for (std::size_t i = 0; i < count; ++i) {
    const auto value = [&](int rank) { return get<T>(serial.data(), static_cast<std::size_t>(rank) * count + i); };
    T expected = value(0);
    for (int r = 1; r < size; ++r) {
      if (op == ReduceOp::kMin) expected = std::min(expected, value(r));
      if (op == ReduceOp::kMax) expected = std::max(expected, value(r));
      if (op == ReduceOp::kSum || op == ReduceOp::kAverage) {
        expected = static_cast<T>(static_cast<U>(static_cast<U>(expected) + static_cast<U>(value(r))));
      }
    }
    if (op == ReduceOp::kAverage) expected = static_cast<T>(static_cast<std::int64_t>(expected) / size);
    if (get<T>(result, i) != expected) return "element " + std::to_string(i) + " is not the exact result";
  }
  return {};
}

// Bound: each of the (n - 1) additions, the two roundings of the average (reciprocal and product) and one
// rounding of the stored result is off by at most u relative to a partial result, which is at most
// sum |x|; the usual (1 + u)^k - 1 <= 1.01 k u holds for k u < 0.01, else the exact power is taken.
std::string compare_floats(const std::vector<std::byte>& serial, const std::byte* result, std::size_t count, int size,
                           ReduceOp op, DataType dtype) {
  const long double roundings = size + 2;
  const long double relative = std::pow(1.0L + roundoff(dtype), roundings) - 1.0L;
  for (std::size_t i = 0; i < count; ++i) {
    long double sum = 0;
    long double magnitude = 0;
    long double smallest = HUGE_VALL;
    long double largest = -HUGE_VALL;
    for (int r = 0; r < size; ++r) {
      const long double x = read_float(serial.data(), static_cast<std::size_t>(r) * count + i, dtype);
      sum += x;
      magnitude += std::fabs(x);
      smallest = std::min(smallest, x);
      largest = std::max(largest, x);
    }
    long double expected = sum;
    long double bound = relative * magnitude + roundings * underflow(dtype);
    if (op == ReduceOp::kAverage && size > 1) {
      expected /= size;
      bound = relative * magnitude / size + roundings * underflow(dtype);
    }
    if (op == ReduceOp::kMin) expected = smallest;
    if (op == ReduceOp::kMax) expected = largest;
    if (op == ReduceOp::kMin || op == ReduceOp::kMax || size == 1) bound = 0;
    const long double got = read_float(result, i, dtype);
    if (!(std::fabs(got - expected) <= bound)) {
      return "element " + std::to_string(i) + " is " + std::to_string(static_cast<double>(got)) + ", expected " +
             std::to_string(static_cast<double>(expected)) + " within " + std::to_string(static_cast<double>(bound));
    }
  }
  return {};
}

std::string compare(const std::vector<std::byte>& serial, const std::byte* result, int size, const AllReduceCase& c) {
  switch (c.dtype) {
    case DataType::kI32: return compare_integers<std::int32_t>(serial, result, c.count, size, c.op);
    case DataType::kI64: return compare_integers<std::int64_t>(serial, result, c.count, size, c.op);
    case DataType::kU8: return compare_integers<std::uint8_t>(serial, result, c.count, size, c.op);
    default: return compare_floats(serial, result, c.count, size, c.op, c.dtype);
  }
}

std::string same_everywhere(Communicator& communicator, std::uint64_t value) {
  std::array<std::uint64_t, 2> words{value, ~value};  // AND of both halves loses a bit wherever two ranks differ
  communicator.control().all_reduce_bits(words, BitOp::kAnd, soon());
  return words[0] == value && words[1] == ~value ? "" : "ranks have different bits";
}

}  // namespace

std::string AllReduceCase::text() const {
  return std::to_string(count) + " x " + std::string(name(dtype)) + ", " + std::string(name(op)) +
         (memory == Memory::kRegistered ? ", registered" : ", plain");
}

std::string check_all_reduce(Communicator& communicator, const AllReduceCase& c) {
  const int size = communicator.topology().size;
  const int rank = communicator.topology().rank;
  const std::size_t bytes = c.count * size_of(c.dtype);
  const auto input_of = [&](int r, std::byte* to) {
    for (std::size_t i = 0; i < c.count; ++i) write_value(to, i, c.dtype, r);
  };
  std::vector<std::byte> mine(bytes);
  input_of(rank, mine.data());
  std::unique_ptr<comm::RegisteredMemory> registered;
  std::vector<std::byte> plain;
  std::byte* buffer = nullptr;
  if (c.memory == Memory::kRegistered) {
    registered = communicator.data().allocate(bytes + kGuardBytes, soon());
    buffer = registered->bytes().data();
  } else {
    plain.resize(bytes + kGuardBytes);
    buffer = plain.data();
  }
  std::array<std::uint64_t, 2> hashes{};
  for (std::uint64_t& hash : hashes) {
    std::copy_n(mine.data(), bytes, buffer);
    std::fill_n(buffer + bytes, kGuardBytes, kGuard);
    communicator.data().all_reduce(buffer, c.count, c.dtype, c.op, soon());
    if (!std::all_of(buffer + bytes, buffer + bytes + kGuardBytes, [](std::byte b) { return b == kGuard; })) {
      return c.text() + ": wrote past the end";
    }
    hash = digest({buffer, bytes});
  }
  // Agreement first, so that a rank that finds a fault does not leave the others waiting.
  const std::string differ = same_everywhere(communicator, hashes[0]);
  if (!differ.empty()) return c.text() + ": " + differ;
  if (hashes[0] != hashes[1]) return c.text() + ": two runs have different bits";
  if (rank != 0) return "";  // all have the bits of rank 0, which knows everybody's input
  std::vector<std::byte> serial(bytes * static_cast<std::size_t>(size));
  for (int r = 0; r < size; ++r) input_of(r, serial.data() + bytes * static_cast<std::size_t>(r));
  const std::string wrong = compare(serial, buffer, size, c);
  return wrong.empty() ? "" : c.text() + ": " + wrong;
}

std::string check_all_reduce_matrix(Communicator& communicator, bool large) {
  constexpr std::array kTypes{DataType::kF32, DataType::kF64, DataType::kF16, DataType::kBF16,
                              DataType::kI32, DataType::kI64, DataType::kU8};
  constexpr std::array kOps{ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax};
  std::vector<AllReduceCase> cases;
  for (const Memory memory : {Memory::kPlain, Memory::kRegistered}) {
    for (const std::size_t count : {0U, 1U, 7U, 1000U, 20011U}) {
      for (const DataType dtype : kTypes) {
        for (const ReduceOp op : kOps) {
          // Every pair of type and operation once; above that, lengths matter, and one operation per type will do.
          if (count > 7 && op != kOps[static_cast<std::size_t>(dtype) % kOps.size()]) continue;
          cases.push_back({count, dtype, op, memory});
        }
      }
    }
    if (large) {
      cases.push_back({300007, DataType::kF32, ReduceOp::kSum, memory});
      cases.push_back({600011, DataType::kBF16, ReduceOp::kAverage, memory});
      cases.push_back({300007, DataType::kI64, ReduceOp::kSum, memory});
    }
  }
  for (const AllReduceCase& one : cases) {
    if (std::string problem = check_all_reduce(communicator, one); !problem.empty()) return problem;
  }
  return {};
}

std::string check_control_plane(Communicator& communicator) {
  comm::ControlPlane& control = communicator.control();
  const int size = communicator.topology().size;
  const int rank = communicator.topology().rank;
  control.barrier(soon());

  for (const std::size_t length : {1U, 16U, 5000U}) {  // the last is longer than a slot
    std::vector<std::uint64_t> ones(length, ~0ULL);
    std::vector<std::uint64_t> zeros(length, 0);
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

  const auto message_of = [](int of, std::size_t scale) {
    Bytes message(static_cast<std::size_t>(of) * scale);
    for (std::size_t i = 0; i < message.size(); ++i) message[i] = static_cast<std::byte>(random_bits(of, i));
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
  const int rank = communicator.topology().rank;
  const int last = communicator.topology().size - 1;
  // Where the bytes come from does not depend on how many they are: many of them from the first and the last will do.
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
