#include "engine/runtime/plan_check.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <span>
#include <string>

#include "engine/base/error.h"
#include "engine/base/hash.h"

namespace hvd {
namespace {

/// The start of the message that each rank sends to rank 0 if hashes differ. The gradient list follows the header.
struct Header {
  std::uint64_t dtype, op, buckets, hash;
};

comm::Bytes describe(const core::BucketPlan& plan, const std::vector<core::GradientInfo>& gradients) {
  const Header header{static_cast<std::uint64_t>(plan.dtype), static_cast<std::uint64_t>(plan.op), plan.buckets.size(),
                      plan.hash};
  const auto bytes = std::as_bytes(std::span(&header, 1));
  comm::Bytes out(bytes.begin(), bytes.end());
  const auto list = core::serialize(gradients);
  out.insert(out.end(), list.begin(), list.end());
  return out;
}

std::string difference(const core::BucketPlan& plan, const std::vector<core::GradientInfo>& gradients,
                       const comm::Bytes& described) {
  Header theirs{};
  if (described.size() < sizeof theirs) return "its description is unreadable";
  std::memcpy(&theirs, described.data(), sizeof theirs);
  const auto list = core::deserialize_gradients({described.begin() + sizeof theirs, described.end()});
  if (std::string lists = core::first_difference(gradients, list); !lists.empty()) return lists;
  const auto dtype = static_cast<DataType>(theirs.dtype);
  if (dtype != plan.dtype) {
    return fmt::format("element type {} here, {} there", name(plan.dtype), name(dtype));
  }
  const auto op = static_cast<ReduceOp>(theirs.op);
  if (op != plan.op) return fmt::format("operation {} here, {} there", name(plan.op), name(op));
  return fmt::format(
      "the same gradients in {} buckets (hash {}) here, in {} (hash {}) there: the bucket sizes or the builds differ",
      plan.buckets.size(), hex64(plan.hash), theirs.buckets, hex64(theirs.hash));
}

}  // namespace

void compare_plans(comm::Communicator& communicator, const core::BucketPlan& plan,
                   const std::vector<core::GradientInfo>& gradients, Deadline deadline) {
  comm::ControlPlane& control = communicator.control();
  // The AND of all hashes is the complement of the AND of all complements only if all hashes are equal.
  std::array<std::uint64_t, 2> words{plan.hash, ~plan.hash};
  control.all_reduce_bits(words, BitOp::kAnd, deadline);
  if (words[0] == ~words[1]) return;

  const comm::Topology& topology = communicator.topology();
  const std::vector<comm::Bytes> all = control.gather(describe(plan, gradients), deadline);
  std::string text;
  if (topology.rank == 0) {
    const comm::Bytes own = describe(plan, gradients);
    std::size_t differing = 0;
    for (std::size_t rank = 1; rank < all.size(); ++rank) {
      if (all[rank] == own) continue;
      if (differing++ == 0) {
        text = fmt::format("gradient plans differ: {} against rank 0 (host {}, here): {}",
                           comm::rank_at(rank, topology.hosts), topology.hosts.at(0),
                           difference(plan, gradients, all[rank]));
      }
    }
    if (differing > 1) text += fmt::format("; {} more ranks differ", differing - 1);
    text += "; start every rank with the same binary, model and options";
  }
  throw Error(Errc::kMismatch, comm::text_of(control.broadcast(std::as_bytes(std::span(text)), 0, deadline)));
}

}  // namespace hvd
