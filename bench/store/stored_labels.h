// Finds the values of a label (--label KEY=VALUE) in the complete sessions of some stores. A job script uses it to
// learn what is done already, on a compute node without Python. Files are only read.
#pragma once

#include <set>
#include <string>
#include <vector>

namespace hvd::bench {

struct StoredLabels {
  std::set<std::string> values;
  std::vector<std::string> problems;  ///< one line for each file that cannot be read; its values are missing
};

/// Values of `key` in all sessions of `files` whose runs are all complete. Files of a killed job count as well:
/// `.partial` files, and files with a journal that must be rolled back (which is done on a private copy).
StoredLabels stored_labels(const std::string& key, const std::vector<std::string>& files);

}  // namespace hvd::bench
