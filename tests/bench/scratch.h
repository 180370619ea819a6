// Parts that the tests of bench share: a folder for one test, a limit on file sizes, and the text of an expected error.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <string>

#include "engine/base/error.h"

namespace hvd::test {

/// Makes a new folder, and removes the folder when the object is destroyed.
class Folder {
 public:
  Folder() {
    std::string name = std::filesystem::temp_directory_path() / "hvd_test_XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) throw Error(Errc::kIo, name + ": cannot be made");
    path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::size_t files() const {
    namespace fs = std::filesystem;
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(path_), fs::directory_iterator()));
  }

 private:
  std::filesystem::path path_;
};

/// Lowers RLIMIT_FSIZE while the object exists. Writes beyond the limit fail with EFBIG, because the test ignores
/// SIGXFSZ, as the program does.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : before_handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit lower{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &lower);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, before_handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
  void (*before_handler_)(int);
};

/// Runs `act`, which must throw an Error with `code`. Returns the error's text.
template <class Act>
std::string error_of(Errc code, Act&& act) {
  try {
    act();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

}  // namespace hvd::test
