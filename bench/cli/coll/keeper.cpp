#include "bench/cli/coll/keeper.h"

#include <utility>

#include "bench/cli/console.h"
#include "engine/base/error.h"

namespace hvd::bench {
namespace {

constexpr std::chrono::seconds kWaitForTheStore(30);  // longest wait for another program's lock on the store

}  // namespace

void CollKeeper::observe(coll::CollObserver& observer) {
  observer.finished = [this](const coll::CollResult& result) {
    const std::lock_guard lock(mutex_);
    if (written_) return;
    put_coll_outputs(*output_, result, kWaitForTheStore);
    written_ = true;
  };
  observer.snapshot = [this](coll::Snapshot snapshot) {
    const std::lock_guard lock(mutex_);
    snapshot_ = std::move(snapshot);
  };
}

void CollKeeper::write_now(const std::string& reason, std::chrono::milliseconds patience) {
  const std::unique_lock lock(mutex_, patience);
  if (!lock || written_ || !snapshot_) return;
  const std::optional<coll::CollResult> result = snapshot_(reason);
  if (!result) return;
  try {
    put_coll_outputs(*output_, *result, patience);
    written_ = true;
  } catch (const Error& error) {
    say_error(error.what());
  }
}

}  // namespace hvd::bench
