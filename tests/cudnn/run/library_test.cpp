// Tests which versions of cuDNN are accepted and which are refused, and the texts of the errors. The libraries are
// stand-ins (CMakeLists.txt). The folder HVD_STAND_INS has one folder for each version.
#include "models/cudnn/library/library.h"

#include <gtest/gtest.h>

#include "models/cudnn/run/cudnn_launch.h"
#include "tests/models/testing.h"

namespace hvd::models::cudnn::testing::library_test {
namespace {

gpu::LibrarySearch in_folder(const std::string& version) {
  gpu::LibrarySearch search;
  search.cudnn_root = std::string(HVD_STAND_INS) + "/cudnn-" + version;
  return search;
}

TEST(LibraryVersion, IsReadFromTheNumber) {
  EXPECT_EQ(version_from_number(8907).text(), "8.9.7");
  EXPECT_EQ(version_from_number(90000).text(), "9.0.0");
  EXPECT_EQ(version_from_number(91900).text(), "9.19.0");
  EXPECT_LT(version_from_number(8801), kOldestVersion);
}

TEST(LibraryVersion, OlderThanNeededIsRefusedWithWhatWhereAndWhatToDo) {
  models::testing::expect_error(Errc::kUnsupported,
                                {"/cudnn-8801/libcudnn.so.9 is cuDNN 8.8.1, older than 8.9.0: install cuDNN 8.9 or 9 "
                                 "for this CUDA version, or name its folder in LD_LIBRARY_PATH or HVD_CUDNN_ROOT"},
                                [] { static_cast<void>(Library::load(in_folder("8801"))); });
}

TEST(LibraryVersion, TheOldestOfTheLastMajorVersionIsTaken) {
  const auto library = Library::load(in_folder("8907"));
  EXPECT_EQ(library->version().text(), "8.9.7");
  EXPECT_EQ(library->call().get_last_error_string, nullptr) << "came with 9.0";
  EXPECT_EQ(library->explain(CUDNN_STATUS_BAD_PARAM), "CUDNN_STATUS_NOT_INITIALIZED");
  EXPECT_LT(library->version(), kDevicelessVersion);
}

TEST(LibraryVersion, ANewerOneThanThisWasWrittenForIsTaken) {
  const auto library = Library::load(in_folder("99901"));
  EXPECT_EQ(library->version().text(), "9.99.1");
  EXPECT_EQ(library->explain(CUDNN_STATUS_BAD_PARAM), "CUDNN_STATUS_NOT_INITIALIZED: no device");
}

TEST(LibraryVersion, ALibraryForAnotherCudaIsNamedWhenItDoesNotStart) {
  const auto library = Library::load(in_folder("8907"));
  const std::string here = std::to_string(CUDART_VERSION / 1000);
  EXPECT_EQ(library->description(), "cuDNN 8.9.7 for CUDA 11 (this program: " + here + ")");
  models::testing::expect_error(Errc::kBackend,
                                {"cudnnCreate (cuDNN 8.9.7 for CUDA 11 (this program: " + here +
                                 ")): "
                                 "CUDNN_STATUS_NOT_INITIALIZED; is the driver new enough"},
                                [&] { const Handle handle(library); });
  EXPECT_EQ(Library::load(in_folder("99901"))->description(), "cuDNN 9.99.1 for CUDA " + here);
}

}  // namespace
}  // namespace hvd::models::cudnn::testing::library_test
