#include "engine/core/negotiator.h"

#include <fmt/format.h>

#include <bit>
#include <iterator>
#include <utility>

#include "engine/base/assert.h"
#include "engine/base/error.h"
#include "engine/base/hash.h"
#include "engine/core/coordinator.h"

namespace hvd::core {
namespace {

// Bits of word 0 of the exchange. A rank clears the matching kNo... bit if it has an uncached tensor or an invalid
// entry. The AND over ranks of such a bit is therefore 0 if any rank cleared the bit.
constexpr std::uint64_t kNoUncached = 1;
constexpr std::uint64_t kNoInvalid = 2;
// Word 1 holds the digest and its complement. The words after it hold one bit per cache entry.
constexpr std::size_t kHeaderWords = 2;

template <class Visit>
void for_each_bit(std::span<const std::uint64_t> words, Visit visit) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    for (std::uint64_t word = words[i]; word != 0; word &= word - 1) {
      visit(i * 64 + static_cast<std::size_t>(std::countr_zero(word)));
    }
  }
}

void set_bit(std::vector<std::uint64_t>& words, std::size_t bit) { words[bit / 64] |= std::uint64_t{1} << (bit % 64); }
bool has_bit(const std::vector<std::uint64_t>& words, std::size_t bit) {
  return (words[bit / 64] >> (bit % 64) & 1) != 0;
}
void clear_bit(std::vector<std::uint64_t>& words, std::size_t bit) {
  words[bit / 64] &= ~(std::uint64_t{1} << (bit % 64));
}

std::uint64_t digest_of(const NegotiatorOptions& options) {
  return Hasher()
      .number(options.cache_capacity)
      .number(options.fusion.threshold_bytes)
      .number(options.fusion.align_bytes)
      .value();
}

/// `code`: kMismatch if all ranks detect the difference in the same cycle. If only this rank detects it, use another
/// code, so that the engine aborts the peers. After kMismatch the engine aborts no peer.
[[noreturn]] void caches_differ(const std::string& how, Errc code = Errc::kInvalidArgument) {
  throw Error(code, fmt::format("the ranks' negotiations have diverged ({}): fusion threshold and cache capacity must "
                                "be the same on every rank; check HOROVOD_FUSION_THRESHOLD and HOROVOD_CACHE_CAPACITY",
                                how));
}

}  // namespace

Negotiator::Negotiator(int rank, int size, const NegotiatorOptions& options)
    : rank_(rank), size_(size), options_(options), cache_(options.cache_capacity), options_digest_(digest_of(options)) {
  if (size < 1 || rank < 0 || rank >= size) {
    throw Error(Errc::kInvalidArgument, fmt::format("no rank {} in a world of {} ranks", rank, size));
  }
  if (rank == 0) coordinator_ = std::make_unique<Coordinator>(size);
}

Negotiator::~Negotiator() = default;
Negotiator::Negotiator(Negotiator&&) noexcept = default;
Negotiator& Negotiator::operator=(Negotiator&&) noexcept = default;

void Negotiator::set_fusion(const FusionOptions& fusion) {
  HVD_ASSERT(phase_ == Phase::kIdle);
  options_.fusion = fusion;
  options_digest_ = digest_of(options_);
}

void Negotiator::already_pending(std::string_view name) const {
  throw Error(
      Errc::kInvalidArgument,
      fmt::format("tensor '{}' is already pending on rank {}: wait for it before submitting it again", name, rank_));
}

std::optional<CachedAt> Negotiator::submit(const Request& request, Tag tag) {
  request.check();
  if (request.terms.root >= size_) {
    throw Error(Errc::kInvalidArgument, fmt::format("broadcast '{}': root {} is not one of the {} ranks", request.name,
                                                    request.terms.root, size_));
  }
  const auto bit = cache_.bit(request.name, next_bit_);
  if (bit ? holds(*bit) : uncached_.contains(request.name)) already_pending(request.name);
  if (!bit) {
    miss({request, tag});
    return std::nullopt;
  }
  next_bit_ = *bit + 1 < cache_.bit_count() ? *bit + 1 : 0;
  if (cache_.at(*bit) != request) {
    hold(*bit, tag, request);
    return std::nullopt;
  }
  hold(*bit, tag, std::nullopt);
  return cache_.place(*bit);
}

bool Negotiator::submit_cached(const CachedAt& at, Tag tag) {
  if (!cache_.holds(at)) return false;
  if (holds(at.bit)) already_pending(cache_.name(at.bit));
  hold(at.bit, tag, std::nullopt);
  return true;
}

void Negotiator::report_pending() {
  HVD_ASSERT(phase_ == Phase::kIdle);
  for_each_bit(std::vector<std::uint64_t>(hit_words_), [this](std::size_t bit) {
    Uncached pending = take(bit);
    hold(bit, pending.tag, std::move(pending.request));
  });
}

bool Negotiator::holds(std::size_t bit) const {
  return has_bit(hit_words_, bit) || (invalid_count_ > 0 && has_bit(invalid_words_, bit));
}

void Negotiator::hold(std::size_t bit, Tag tag, std::optional<Request> other) {
  set_bit(other ? invalid_words_ : hit_words_, bit);
  tags_[bit] = tag;
  ++held_count_;
  if (!other) return;
  ++invalid_count_;
  other_.emplace(bit, *std::move(other));
}

Negotiator::Uncached Negotiator::take(std::size_t bit) {
  HVD_ASSERT(holds(bit));
  --held_count_;
  const auto other = other_.find(bit);
  if (other == other_.end()) {
    clear_bit(hit_words_, bit);
    return {cache_.at(bit), tags_[bit]};
  }
  clear_bit(invalid_words_, bit);
  --invalid_count_;
  Uncached pending{std::move(other->second), tags_[bit]};
  other_.erase(other);
  return pending;
}

void Negotiator::forget(std::size_t bit) {
  // An entry may be evicted in the same cycle that inserted it, before hit_words_ is long enough for its bit.
  if (bit < tags_.size() && holds(bit)) miss(take(bit));
}

void Negotiator::miss(Uncached&& pending) {
  std::string name = pending.request.name;
  const auto added = uncached_.emplace(std::move(name), std::move(pending)).first;
  to_send_.push_back(&added->second);
}

std::uint64_t Negotiator::digest() const {
  const std::uint64_t mixed = (options_digest_ ^ cache_.history()) * 0x9e3779b97f4a7c15ULL;
  const std::uint64_t half = mixed >> 32;
  return half | (~half << 32);
}

Action Negotiator::begin_cycle() {
  HVD_ASSERT(phase_ == Phase::kIdle);
  phase_ = Phase::kBits;
  agreed_.clear();
  answered_.clear();
  cache_.forget_erased();
  AllReduceBits exchange{BitOp::kAnd, {}};
  exchange.words.reserve(kHeaderWords + hit_words_.size());
  exchange.words.push_back((to_send_.empty() ? kNoUncached : 0) | (invalid_count_ == 0 ? kNoInvalid : 0));
  exchange.words.push_back(digest());
  exchange.words.insert(exchange.words.end(), hit_words_.begin(), hit_words_.end());
  return exchange;
}

Action Negotiator::on_bits(std::span<const std::uint64_t> reduced) {
  HVD_ASSERT(phase_ == Phase::kBits || phase_ == Phase::kInvalidBits);
  if (phase_ == Phase::kBits) return on_status(reduced);

  if (reduced.size() != hit_words_.size()) caches_differ("the number of invalid bits differs");
  for_each_bit(reduced, [this](std::size_t bit) {
    if (!cache_.holds(bit)) caches_differ("an invalid bit without an entry");
    forget(bit);
    cache_.erase(bit);
    ++stats_.invalidated;
  });
  return after_bits();
}

Action Negotiator::on_status(std::span<const std::uint64_t> reduced) {
  if (reduced.size() != kHeaderWords + hit_words_.size()) caches_differ("the number of cache bits differs");
  if (reduced[1] != digest()) caches_differ("the digest differs", Errc::kMismatch);
  const std::uint64_t status = reduced[0];
  const bool any_invalid = (status & kNoInvalid) == 0;
  coordinate_ = any_invalid || (status & kNoUncached) == 0;

  const auto agreed = reduced.subspan(kHeaderWords);
  for (std::size_t i = 0; i < agreed.size(); ++i) {
    if ((agreed[i] & ~hit_words_[i]) != 0) caches_differ("a bit was agreed on that this rank did not set");
  }
  agreed_.assign(agreed.begin(), agreed.end());
  if (!any_invalid || hit_words_.empty()) return after_bits();

  phase_ = Phase::kInvalidBits;
  return AllReduceBits{BitOp::kOr, invalid_words_};
}

Action Negotiator::after_bits() {
  if (!coordinate_) return finish({});
  phase_ = Phase::kGather;
  std::vector<const Request*> requests;
  requests.reserve(to_send_.size());
  for (Uncached* pending : to_send_) {
    pending->sent = true;
    requests.push_back(&pending->request);
  }
  Gather gather{encode_requests(requests)};
  to_send_.clear();
  return gather;
}

Action Negotiator::on_gathered(std::span<const Bytes> messages) {
  HVD_ASSERT(phase_ == Phase::kGather);
  HVD_ASSERT(messages.size() == (rank_ == 0 ? static_cast<std::size_t>(size_) : 0));
  phase_ = Phase::kBroadcast;
  if (rank_ != 0) return Broadcast{};
  for (int rank = 0; rank < size_; ++rank) coordinator_->add(rank, messages[static_cast<std::size_t>(rank)]);
  return Broadcast{coordinator_->respond()};
}

Action Negotiator::on_broadcast(std::span<const std::byte> message) {
  HVD_ASSERT(phase_ == Phase::kBroadcast);
  return finish(decode_responses(message));
}

void Negotiator::take_agreed_bits(Agreed& agreed) {
  for_each_bit(agreed_, [&](std::size_t bit) {
    agreed.items.push_back(cache_.item(bit));
    agreed.names.push_back(cache_.name(bit));
    agreed.tags.push_back(tags_[bit]);
    if (agreed.items.back().terms.kind == Collective::kAllGather) agreed.rows.push_back(cache_.rows(bit));
  });
  for (std::size_t i = 0; i < agreed_.size(); ++i) hit_words_[i] &= ~agreed_[i];
  held_count_ -= agreed.items.size();
  cache_.touch_all(agreed_);
}

std::vector<Batch> Negotiator::take_responses(std::vector<Response> responses, Agreed& agreed) {
  std::vector<Batch> failed;
  answered_.reserve(responses.size());  // a reallocation would invalidate the string_views of these names
  for (Response& response : responses) {
    const auto pending = uncached_.find(response.request.name);
    const bool here = pending != uncached_.end() && pending->second.sent;
    if (!here || (response.error.empty() && !answers(response, pending->second.request))) {
      // Only this rank detects the error. kMismatch would not abort the other ranks.
      throw Error(Errc::kInvalidArgument,
                  fmt::format("rank 0 answered for tensor '{}', which rank {} has not asked for in that form",
                              response.request.name, rank_));
    }
    // The cache needs this rank's own request: an all_gather's number of rows is compared with the next submission.
    const Uncached mine = std::move(pending->second);
    uncached_.erase(pending);
    const std::string_view name = answered_.emplace_back(mine.request.name);
    if (!response.error.empty()) {
      const Request& told = response.request;  // equal on all ranks
      failed.push_back(
          {{name}, told.dtype, told.op, told.bytes(), std::move(response.error), told.terms, {}, {mine.tag}});
      continue;
    }
    agreed.items.push_back(item_of(mine.request, response.rows));
    agreed.names.push_back(name);
    agreed.tags.push_back(mine.tag);
    if (mine.request.terms.kind == Collective::kAllGather) agreed.rows.push_back(response.rows);
    if (const auto victim = cache_.next_victim()) forget(*victim);
    cache_.insert(mine.request, std::move(response.rows));
  }
  return failed;
}

Action Negotiator::finish(std::vector<Response> responses) {
  Agreed agreed;
  std::size_t most = responses.size();
  for (const std::uint64_t word : agreed_) most += static_cast<std::size_t>(std::popcount(word));
  agreed.items.reserve(most);
  agreed.names.reserve(most);
  agreed.tags.reserve(most);
  take_agreed_bits(agreed);
  std::vector<Batch> failed = take_responses(std::move(responses), agreed);
  tags_.resize(cache_.bit_count());
  hit_words_.resize((cache_.bit_count() + 63) / 64);
  invalid_words_.resize(hit_words_.size());

  CycleDone done{fuse_names(agreed.items, agreed.names, agreed.tags, options_.fusion)};
  // Each all_gather is a batch of its own. These batches and agreed.rows are in the same order.
  auto rows = agreed.rows.begin();
  for (Batch& batch : done.batches) {
    if (batch.terms.kind == Collective::kAllGather) batch.rows = std::move(*rows++);
  }
  done.batches.insert(done.batches.end(), std::make_move_iterator(failed.begin()),
                      std::make_move_iterator(failed.end()));
  ++stats_.cycles;
  if (coordinate_) {
    ++stats_.coordinated;
  } else {
    ++stats_.fast_cycles;
  }
  phase_ = Phase::kIdle;
  return done;
}

bool Negotiator::answers(const Response& response, const Request& own) const {
  if (!response.request.matches(own)) return false;
  if (own.terms.kind != Collective::kAllGather) return true;
  return response.rows.size() == static_cast<std::size_t>(size_) &&
         response.rows[static_cast<std::size_t>(rank_)] == own.shape.front();
}

std::vector<Stall> Negotiator::stalls() const {
  std::vector<Stall> stalls;
  if (!coordinator_) return stalls;
  for (Coordinator::Waiting& waiting : coordinator_->waiting()) {
    stalls.push_back({std::move(waiting.name), std::move(waiting.missing_ranks)});
  }
  return stalls;
}

}  // namespace hvd::core
