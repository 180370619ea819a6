// A Communicator over one primitive: every rank contributes bytes and sees everybody's.
#pragma once

#include <memory>
#include <string>

#include "engine/comm/communicator.h"

namespace hvd::comm {

class Exchange {
 public:
  virtual ~Exchange() = default;
  /// Collective: one message per rank, in rank order.
  virtual std::vector<Bytes> exchange(std::span<const std::byte> message, Deadline deadline) = 0;
  virtual void abort(std::string_view reason) noexcept = 0;
};

std::unique_ptr<Communicator> make_exchange_communicator(std::unique_ptr<Exchange> exchange, Topology topology,
                                                         std::string backend, std::string library);

}  // namespace hvd::comm
