#include "engine/core/coordinator.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "engine/base/assert.h"
#include "engine/base/error.h"
#include "engine/base/json.h"
#include "engine/core/wire.h"

namespace hvd::core {
namespace {

// Change both tags when the layout of a message changes, so that ranks of different versions refuse each other's
// messages. Earlier versions, whose ranks could shut down alone, used 0xA1 to 0xA4.
constexpr std::uint8_t kRequestsTag = 0xA5;
constexpr std::uint8_t kResponsesTag = 0xA6;
constexpr std::size_t kMinRequest = 4 + 1 + 1 + 1 + 4;
// An error names at most this many differing values, so that 512 ranks with 512 shapes still give one readable line.
constexpr std::size_t kMaxValues = 6;

struct DistinctText {
  std::string text;
  RankSet ranks;
};

void append(std::vector<DistinctText>& values, std::string text, const RankSet& ranks) {
  auto found =
      std::find_if(values.begin(), values.end(), [&](const DistinctText& value) { return value.text == text; });
  if (found == values.end()) found = values.insert(values.end(), {std::move(text), RankSet(ranks.size())});
  for (const int rank : ranks.to_vector()) found->ranks.insert(rank);
}

/// Lists the attributes that differ between ranks: "shape [2, 3] on ranks 0-5, 7, [4] on rank 6; operation ...".
std::string describe(std::initializer_list<std::pair<const char*, std::vector<DistinctText>>> attributes) {
  std::string text;
  for (const auto& [what, values] : attributes) {
    if (values.size() < 2) continue;
    text += std::string(text.empty() ? "" : "; ") + what;
    for (std::size_t i = 0; i < std::min(values.size(), kMaxValues); ++i) {
      text += fmt::format("{}{} on {}", i == 0 ? " " : ", ", values[i].text, values[i].ranks.to_text());
    }
    if (values.size() > kMaxValues) text += fmt::format(", and {} more", values.size() - kMaxValues);
  }
  return text;
}

std::string shape_text(const Request& request) {
  if (request.terms.kind == Collective::kGroupedAllReduce) {
    std::string text;
    for (const auto& shape : shapes_of(request.shape)) text += (text.empty() ? "" : " ") + to_text(shape);
    return text;
  }
  if (request.terms.kind != Collective::kAllGather) return to_text(request.shape);
  return "[*" + to_text(request.shape).substr(std::to_string(request.shape.front()).size() + 1);
}

std::string scale_text(const Terms& terms) {
  return fmt::format("{} and {}", json_number(terms.prescale), json_number(terms.postscale));
}

/// Returns false if the size of the all_gather's result does not fit into 64 bits.
bool countable(const Request& request, std::span<const std::int64_t> rows) {
  try {
    static_cast<void>(gathered_bytes(request, rows));
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

bool RankSet::insert(int rank) {
  HVD_ASSERT(rank >= 0 && rank < size_);
  std::uint64_t& word = words_[static_cast<std::size_t>(rank) / 64];
  const std::uint64_t bit = std::uint64_t{1} << (rank % 64);
  if ((word & bit) != 0) return false;
  word |= bit;
  ++count_;
  return true;
}

bool RankSet::contains(int rank) const {
  return ((words_[static_cast<std::size_t>(rank) / 64] >> (rank % 64)) & 1) != 0;
}

RankSet RankSet::complement() const {
  RankSet others(size_);
  for (int rank = 0; rank < size_; ++rank) {
    if (!contains(rank)) others.insert(rank);
  }
  return others;
}

std::vector<int> RankSet::to_vector() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < size_; ++rank) {
    if (contains(rank)) ranks.push_back(rank);
  }
  return ranks;
}

std::string RankSet::to_text() const {
  std::string text = count_ == 1 ? "rank" : "ranks";
  bool first = true;
  for (int rank = 0; rank < size_; ++rank) {
    if (!contains(rank)) continue;
    int last = rank;
    while (last + 1 < size_ && contains(last + 1)) ++last;
    text += (first ? " " : ", ") + std::to_string(rank);
    if (last > rank) text += "-" + std::to_string(last);
    first = false;
    rank = last;
  }
  return text;
}

std::vector<std::byte> encode_requests(std::span<const Request* const> requests) {
  WireWriter out;
  out.u8(kRequestsTag);
  out.u32(static_cast<std::uint32_t>(requests.size()));
  for (const Request* request : requests) out.request(*request);
  return out.take();
}

std::vector<Response> decode_responses(std::span<const std::byte> message) {
  WireReader in(message, "the coordinator's answer");
  if (in.u8() != kResponsesTag) in.fail("it is not an answer of this version of the program");
  std::vector<Response> responses(in.count(kMinRequest + 4));
  for (Response& response : responses) {
    in.request(response.request);
    response.error = in.text();
    if (response.error.empty() && response.request.terms.kind == Collective::kAllGather) {
      in.extents(response.rows);
      static_cast<void>(gathered_bytes(response.request, response.rows));
    }
  }
  in.finish();
  return responses;
}

void Coordinator::add(int rank, std::span<const std::byte> message) {
  const std::string what = "the request message of rank " + std::to_string(rank);
  WireReader in(message, what);
  if (in.u8() != kRequestsTag) in.fail("it is not a request message of this version of the program");
  Request request;
  // Most ranks send their requests in the same order. Therefore `guess` is the entry after the previous request's
  // entry; find_or_add() tries it before it hashes the name.
  auto guess = table_.begin();
  for (std::uint32_t left = in.count(kMinRequest); left > 0; --left) {
    in.request(request);
    if (request.terms.root >= size_) in.fail(fmt::format("root {} is not a rank", request.terms.root));
    const auto entry = find_or_add(request, guess);
    if (!entry->ranks.insert(rank)) in.fail(fmt::format("it repeats tensor '{}'", request.name));
    join_variant(rank, *entry, request);
    guess = std::next(entry);
  }
  in.finish();
}

Coordinator::Table::iterator Coordinator::find_or_add(const Request& request, Table::iterator guess) {
  if (guess != table_.end() && guess->name == request.name) return guess;
  if (const auto found = by_name_.find(request.name); found != by_name_.end()) return found->second;
  const auto added = table_.insert(table_.end(), {request.name, RankSet(size_), {}, {}});
  by_name_.emplace(added->name, added);
  return added;
}

void Coordinator::join_variant(int rank, Entry& entry, const Request& request) const {
  if (request.terms.kind == Collective::kAllGather) {
    entry.rows.resize(static_cast<std::size_t>(size_));
    entry.rows[static_cast<std::size_t>(rank)] = request.shape.front();
  }
  for (Variant& variant : entry.variants) {
    if (variant.request.matches(request)) {
      variant.ranks.insert(rank);
      return;
    }
  }
  entry.variants.push_back({request, RankSet(size_)});
  entry.variants.back().ranks.insert(rank);
}

Response Coordinator::answer(const Entry& entry) {
  Response response{entry.variants.front().request, entry.rows, {}};
  if (entry.variants.size() > 1) {
    std::vector<DistinctText> kinds;
    std::vector<DistinctText> dtypes;
    std::vector<DistinctText> ops;
    std::vector<DistinctText> shapes;
    std::vector<DistinctText> roots;
    std::vector<DistinctText> scales;
    for (const auto& [request, ranks] : entry.variants) {
      append(kinds, std::string(name(request.terms.kind)), ranks);
      append(dtypes, std::string(name(request.dtype)), ranks);
      append(ops, std::string(name(request.op)), ranks);
      append(shapes, shape_text(request), ranks);
      append(roots, std::to_string(request.terms.root), ranks);
      append(scales, scale_text(request.terms), ranks);
    }
    response.error = fmt::format("ranks disagree about tensor '{}': {}", entry.name,
                                 describe({{"kind", kinds},
                                           {"type", dtypes},
                                           {"operation", ops},
                                           {"shape", shapes},
                                           {"root", roots},
                                           {"scale factors", scales}}));
  } else if (response.request.terms.kind == Collective::kAllGather && !countable(response.request, entry.rows)) {
    response.error =
        fmt::format("all_gather '{}': the ranks' rows together are more than 64 bits can count", entry.name);
  }
  return response;
}

std::vector<std::byte> Coordinator::respond() {
  WireWriter out;
  out.u8(kResponsesTag);
  const std::size_t count_at = out.size();
  out.u32(0);
  std::uint32_t answered = 0;
  for (auto entry = table_.begin(); entry != table_.end();) {
    if (entry->ranks.count() < size_) {
      ++entry;
      continue;
    }
    const Response response = answer(*entry);
    out.request(response.request);
    out.text(response.error);
    if (response.error.empty() && response.request.terms.kind == Collective::kAllGather) {
      out.extents(response.rows);
    }
    ++answered;
    by_name_.erase(entry->name);
    entry = table_.erase(entry);
  }
  out.patch_u32(count_at, answered);
  return out.take();
}

std::vector<Coordinator::Waiting> Coordinator::waiting() const {
  std::vector<Waiting> waiting;
  for (const Entry& entry : table_) waiting.push_back({entry.name, entry.ranks.complement().to_vector()});
  return waiting;
}

}  // namespace hvd::core
