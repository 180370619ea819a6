// A text file with digests of long texts. It has one line per text: "NAME: FIGURE NUMBER ... lines 812 hash
// 0123456789abcdef parts 0123 4567 ...". The parts are digests of sixteen pieces of the text. These digests show in
// which piece a text first differs, although the old text is not kept. The test owns the object; one thread uses it.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

namespace hvd::models::cudnn::testing {

struct GoldenOptions {
  std::string file;         ///< path of the file of digests
  std::string first_line;   ///< the file must begin with this line: versions of the test and of cuDNN
  std::string texts;        ///< folder to which each text is written, as NAME.txt
  std::string before = {};  ///< folder of texts of an earlier commit, to show the first line that differs; empty: none
  bool write = false;       ///< digests that differ are written to the file instead of being reported
};

class Golden {
 public:
  explicit Golden(GoldenOptions options);
  Golden(const Golden&) = delete;
  Golden& operator=(const Golden&) = delete;
  /// Writes the file if `write` is set. Prints an error instead of throwing one.
  ~Golden();

  /// Returns why the file cannot be used for comparison. Empty: the file is usable.
  [[nodiscard]] const std::string& unusable() const noexcept { return unusable_; }
  /// Returns a description of how `figures` and `text` differ from the file's line `name`. Empty: they are equal.
  /// `figures` alternates words and numbers. In each line of `text`, anything after "   # " is ignored.
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
