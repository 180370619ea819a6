#include "engine/comm/communicator.h"

namespace hvd::comm {
namespace {

class Forwarding final : public Communicator {
 public:
  explicit Forwarding(Communicator& target) : lender_(target) {}

  [[nodiscard]] const Topology& topology() const override { return lender_.topology(); }
  [[nodiscard]] ControlPlane& control() override { return lender_.control(); }
  [[nodiscard]] DataPlane& data() override { return lender_.data(); }
  [[nodiscard]] std::string_view backend() const override { return lender_.backend(); }
  [[nodiscard]] std::string library() const override { return lender_.library(); }
  [[nodiscard]] std::string flight_record() const override { return lender_.flight_record(); }

 private:
  Communicator& lender_;
};

}  // namespace

std::unique_ptr<Communicator> forward_to(Communicator& target) { return std::make_unique<Forwarding>(target); }

}  // namespace hvd::comm
