#include "engine/comm/communicator.h"

namespace hvd::comm {
namespace {

class Borrowed final : public Communicator {
 public:
  explicit Borrowed(Communicator& lender) : lender_(lender) {}

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

std::unique_ptr<Communicator> borrow(Communicator& lender) { return std::make_unique<Borrowed>(lender); }

}  // namespace hvd::comm
