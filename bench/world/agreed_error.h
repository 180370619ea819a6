#pragma once

#include "engine/base/error.h"

namespace hvd::bench {

/// An error that every rank knows and throws, so no rank's wait needs to be aborted.
class AgreedError : public Error {
 public:
  using Error::Error;
};

}  // namespace hvd::bench
