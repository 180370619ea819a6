// Which values of a label (--label KEY=VALUE) the sessions of some stores carry that ended well: how a job script
// knows what is done already, on a compute node that has no Python. Files are only read.
#pragma once

#include <iosfwd>
#include <set>
#include <string>
#include <vector>

namespace hvd::bench {

struct StoredLabels {
  std::set<std::string> values;
  std::vector<std::string> problems;  ///< one line for each file that cannot be read; its values are missing
};

/// Values of `key` of all sessions in `files` whose runs are all complete. What a killed job left counts as well:
/// `.partial` files, and a journal that has still to be rolled back (which is done on a private copy).
StoredLabels stored_labels(const std::string& key, const std::vector<std::string>& files);

/// Prints the values, one per line; the problems go to standard error. Returns the exit code: 0, or 2 with problems.
int print_stored_labels(const StoredLabels& labels, std::ostream& out);

}  // namespace hvd::bench
