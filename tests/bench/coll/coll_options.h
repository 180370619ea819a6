// Options of short coll sessions, and how their tests look for parts of a text.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "bench/coll/options.h"
#include "tests/base/patience.h"

namespace hvd::test {

/// Options of which only the sizes are not those of an empty command line.
inline bench::coll::CollOptions sizes_only() {
  bench::coll::CollOptions options;
  options.sizes = {1024, 4096};
  return options;
}

/// Options of a session that takes only a few samples of each cell, even if the samples differ much.
inline bench::coll::CollOptions quick_coll() {
  bench::coll::CollOptions options;
  options.collectives = {bench::coll::kMeasuredCollectives.begin(), bench::coll::kMeasuredCollectives.end()};
  options.sizes = {64, 40000};
  options.warm = true;
  options.warmup = 1;
  options.max_seconds = 1e-3;
  options.deadline = Patience(kNever);
  return options;
}

/// The same session on ranks that are threads of this process.
inline bench::coll::CollOptions on_threads(int ranks, bench::coll::CollOptions options) {
  options.comm = bench::CommBackend::kLoopback;
  options.ranks = ranks;
  options.startup_deadline = Patience(kNever);
  return options;
}

inline testing::AssertionResult says(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "'" << part << "' is not in: " << text;
}

}  // namespace hvd::test
