// A text file of digests of long texts: one line per text, "NAME: FIGURE NUMBER ... lines 812 hash 0123456789abcdef
// parts 0123 4567 ...". The parts are digests of sixteen pieces of the text: they say in which piece a text differs
// first, although the old text is not there. Owned by the test that checks against it; one thread.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

namespace hvd::models::cudnn::testing {

struct GoldenOptions {
  std::string file;         ///< the digests
  std::string first_line;   ///< what they were made with; a file that begins otherwise is not compared with
  std::string texts;        ///< folder that each text is written to, as NAME.txt
  std::string before = {};  ///< folder of texts of an earlier commit, to show the first line that differs; empty: none
  bool write = false;       ///< digests that differ are put into the file, and are no failure
};

class Golden {
 public:
  explicit Golden(GoldenOptions options);
  Golden(const Golden&) = delete;
  Golden& operator=(const Golden&) = delete;
  /// Writes the file if `write` is set. Prints an error instead of throwing one.
  ~Golden();

  /// Why there is nothing to compare with; empty: there is.
  [[nodiscard]] const std::string& unusable() const noexcept { return unusable_; }
  /// Returns how `figures` and `text` differ from the file's line `name`, for people; empty: they do not. `figures` are
  /// words and numbers in turn. In a line of `text`, what follows "   # " is not compared.
  std::string check(const std::string& name, const std::string& figures, const std::vector<std::string>& text);
  /// Returns the names in the file that begin with `prefix` and were not checked.
  [[nodiscard]] std::vector<std::string> unchecked(const std::string& prefix) const;

 private:
  [[nodiscard]] std::string where(const std::string& name, const std::string& old, const std::string& digest,
                                  const std::vector<std::string>& text) const;

  GoldenOptions options_;
  std::string unusable_;
  std::map<std::string, std::string> digests_;  // by name
  std::set<std::string> checked_;
};

}  // namespace hvd::models::cudnn::testing
