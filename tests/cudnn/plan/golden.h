// A text file with digests of long texts. The file has one line for each text: "NAME: FIGURE NUMBER ... lines 812 hash
// 0123456789abcdef parts 0123 4567 ...". Each of the sixteen parts is a digest of one piece of the text. If a text
// changes, the parts show in which piece it first differs, although the old text is not kept. The test owns its Golden.
// Only one thread may use it.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

namespace hvd::models::cudnn::testing {

struct GoldenOptions {
  std::string file;         ///< path of the file with the digests
  std::string first_line;   ///< the first line that the file must have: versions of the test and of cuDNN
  std::string texts;        ///< each text is written to this folder as NAME.txt
  std::string before = {};  ///< folder with an earlier commit's texts, to show the first line that differs; empty: none
  bool write = false;       ///< if true, digests that differ are written to the file instead of being reported
};

class Golden {
 public:
  explicit Golden(GoldenOptions options);
  Golden(const Golden&) = delete;
  Golden& operator=(const Golden&) = delete;
  /// Writes the file if `write` is set. The destructor prints an error instead of throwing it.
  ~Golden();

  /// Returns the reason why the file cannot be used for comparison. Empty if the file is usable.
  [[nodiscard]] const std::string& unusable() const noexcept { return unusable_; }
  /// Compares `figures` and `text` with the file's line `name`. Returns a description of the differences. Empty if
  /// there are none. `figures` alternates words and numbers. In each line of `text`, everything after "   # " is
  /// ignored.
  std::string check(const std::string& name, const std::string& figures, const std::vector<std::string>& text);
  /// Returns those names in the file that begin with `prefix` and that were not checked.
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
