#include "bench/peers/cell.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <random>
#include <stdexcept>
#include <string_view>

namespace hvd::peers {
namespace {

constexpr std::string_view kCollectives[] = {"all_reduce", "reduce_scatter", "all_gather",
                                             "all_to_all", "broadcast",      "barrier"};
constexpr std::string_view kTypes[] = {"fp32", "fp64", "int32", "int64"};
constexpr std::size_t kTypeBytes[] = {4, 8, 4, 8};
constexpr std::size_t kMostBytes = std::size_t{1} << 33;
constexpr std::size_t kMostCalls = 100'000;

[[noreturn]] void refuse(const std::string& what, const std::string& why) {
  throw std::invalid_argument(what + ": " + why);
}

template <std::size_t n>
std::size_t index_of(const std::string_view (&names)[n], const std::string& name, const std::string& cell) {
  const auto* found = std::find(std::begin(names), std::end(names), name);
  if (found == std::end(names)) refuse(cell, "unknown name " + name);
  return static_cast<std::size_t>(found - std::begin(names));
}

std::size_t whole_number(const std::string& text, std::size_t most, const std::string& what) {
  std::size_t value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || rest != end || value > most) {
    refuse(what, text + " is not a whole number from 0 to " + std::to_string(most));
  }
  return value;
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> words(1);
  for (const char c : text) {
    if (c == '/') {
      words.emplace_back();
    } else {
      words.back() += c;
    }
  }
  return words;
}

}  // namespace

std::size_t size_of(Type type) { return kTypeBytes[static_cast<std::size_t>(type)]; }

Cell parse_cell(const std::string& text) {
  const std::vector<std::string> words = split(text);
  if (words.size() != 5) refuse(text, "not OPERATION/TYPE/BYTES/in|out/CALLS");
  Cell cell;
  cell.text = text;
  cell.operation = static_cast<Collective>(index_of(kCollectives, words[0], text));
  cell.type = static_cast<Type>(index_of(kTypes, words[1], text));
  cell.bytes = whole_number(words[2], kMostBytes, text);
  if (words[3] != "in" && words[3] != "out") refuse(text, "the fourth word must be 'in' or 'out'");
  cell.in_place = words[3] == "in";
  cell.calls = whole_number(words[4], kMostCalls, text);
  const bool barrier = cell.operation == Collective::kBarrier;
  if (cell.calls == 0) refuse(text, "no calls");
  if (cell.bytes % size_of(cell.type) != 0 || (cell.bytes == 0) != barrier) {
    refuse(text, "BYTES must be a multiple of the element's size: 0 for a barrier, above 0 for other operations");
  }
  const bool either = cell.operation == Collective::kAllReduce || cell.operation == Collective::kAllGather;
  const bool always = cell.operation == Collective::kBroadcast || barrier;
  if (!either && cell.in_place != always) refuse(text, always ? "must be in place" : "must be out of place");
  return cell;
}

Request parse_request(int argc, const char* const* argv) {
  Request request;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (!word.starts_with("--")) {
      request.cells.push_back(parse_cell(word));
      continue;
    }
    if (word == "--corrupt") {
      request.corrupt = true;
      continue;
    }
    if (i + 1 == argc) refuse(word, "needs a value");
    const std::string value = argv[++i];
    if (word == "--shared-page") {
      request.page = value;
    } else if (word == "--samples") {
      request.samples = whole_number(value, 1'000'000, word);
    } else if (word == "--cell-seconds") {
      request.cell_seconds = static_cast<double>(whole_number(value, 3600, word));
    } else if (word == "--pool-bytes") {
      request.pool_bytes = whole_number(value, kMostBytes, word);
    } else if (word == "--seed") {
      request.seed = whole_number(value, SIZE_MAX, word);
    } else {
      refuse(word, "unknown option");
    }
  }
  if (request.page.empty() || request.samples == 0 || request.cells.empty()) {
    throw std::invalid_argument("needs --shared-page, --samples and at least one cell");
  }
  std::mt19937_64 random(request.seed);
  std::shuffle(request.cells.begin(), request.cells.end(), random);
  return request;
}

}  // namespace hvd::peers
