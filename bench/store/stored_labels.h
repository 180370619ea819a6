// Finds the values of a label (--label KEY=VALUE) in the usable sessions of some stores: those whose runs are all
// complete, and neither traced nor profiled. A job script on a compute node without Python thus learns which work is
// done. Stores are only read.
#pragma once

#include <set>
#include <string>
#include <vector>

namespace hvd::bench {

struct StoredLabels {
  std::set<std::string> values;
  std::vector<std::string> problems;  ///< one line for each file that cannot be read; the file's values are missing
  std::string note;                   ///< a line for the user if a file system has no file locks; otherwise empty
};

/// Returns the values of the label `key` in the usable sessions of `files`. Also reads files of killed jobs: `.partial`
/// files, and files with a journal that must be rolled back (in a private copy).
StoredLabels stored_labels(const std::string& key, const std::vector<std::string>& files);

}  // namespace hvd::bench
