// Tests in which order folders are searched for NVIDIA's libraries, and the messages for a missing or unsuitable
// library.
#include "engine/gpu/shared_library.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "tests/base/errors.h"
#include "tests/gpu/plain_library.h"

namespace hvd::test::shared_library_test {
namespace {

namespace fs = std::filesystem;

gpu::WantedLibrary wanted() {
  return {.what = "Maths",
          .files = {"libhvd_maths.so.9", "libhvd_maths.so"},
          .root_variable = "HVD_CUDNN_ROOT",
          .root = &gpu::LibrarySearch::cudnn_root,
          .build_path = "/build/libhvd_maths.so.9",
          .wheel_folders = {"nvidia/maths/lib", "nvidia/cu13/lib"},
          .how_to_get = "install Maths 9"};
}

/// Makes an empty folder with this name. An old folder of the same name is removed.
fs::path fresh_folder(const char* name) {
  fs::path folder = fs::path(::testing::TempDir()) / name;
  fs::remove_all(folder);
  fs::create_directories(folder);
  return folder;
}

gpu::LibrarySearch search_of(const std::map<std::string, std::string>& environment) {
  return gpu::library_search([&](const char* name) -> std::string_view {
    const auto found = environment.find(name);
    return found == environment.end() ? std::string_view{} : std::string_view(found->second);
  });
}

std::string load_error(const gpu::LibrarySearch& search) {
  return error_of([&] { return gpu::load_library(wanted(), search); });
}

TEST(LibraryOrder, IsLoaderThenBuildThenWheels) {
  gpu::LibrarySearch search;
  search.python_folders = {"/venv"};
  EXPECT_EQ(
      gpu::candidates(wanted(), search),
      (std::vector<std::string>{"libhvd_maths.so.9", "libhvd_maths.so", "/build/libhvd_maths.so.9",
                                "/venv/nvidia/maths/lib/libhvd_maths.so.9", "/venv/nvidia/maths/lib/libhvd_maths.so",
                                "/venv/nvidia/cu13/lib/libhvd_maths.so.9", "/venv/nvidia/cu13/lib/libhvd_maths.so"}));
}

TEST(LibraryOrder, ANamedRootIsTheOnlyPlace) {
  gpu::LibrarySearch search;
  search.python_folders = {"/venv"};
  search.nccl_root = "/another/library's";
  EXPECT_EQ(gpu::candidates(wanted(), search).size(), 7U);
  search.cudnn_root = "/opt/maths";
  EXPECT_EQ(gpu::candidates(wanted(), search),
            (std::vector<std::string>{"/opt/maths/lib/libhvd_maths.so.9", "/opt/maths/lib/libhvd_maths.so",
                                      "/opt/maths/lib64/libhvd_maths.so.9", "/opt/maths/lib64/libhvd_maths.so",
                                      "/opt/maths/libhvd_maths.so.9", "/opt/maths/libhvd_maths.so"}));
}

TEST(LibraryOrder, TheFirstThatLoadsIsTaken) {
  const fs::path packages = fresh_folder("packages");
  put_library(packages / "nvidia/cu13/lib/libhvd_maths.so");
  gpu::LibrarySearch search;
  search.python_folders = {packages};
  const gpu::SharedLibrary last = gpu::load_library(wanted(), search);
  EXPECT_EQ(last.name(), packages / "nvidia/cu13/lib/libhvd_maths.so");
  EXPECT_EQ(last.refusals().size(), 6U);
  put_library(packages / "nvidia/maths/lib/libhvd_maths.so.9");
  EXPECT_EQ(gpu::load_library(wanted(), search).name(), packages / "nvidia/maths/lib/libhvd_maths.so.9");
}

TEST(LibraryOrder, ARefusalSaysWhatWasTriedAndWhatToDo) {
  gpu::LibrarySearch search;
  search.python_folders = {fresh_folder("empty")};
  const std::string error = load_error(search);
  EXPECT_EQ(error.find("unsupported: Maths could not be loaded (there is no libhvd_maths.so.9, libhvd_maths.so, "
                       "/build/libhvd_maths.so.9, "),
            0U)
      << error;
  expect_contains(error,
                  "/empty/nvidia/cu13/lib/libhvd_maths.so): install Maths 9, or name its folder in LD_LIBRARY_PATH "
                  "or HVD_CUDNN_ROOT");
  EXPECT_EQ(error.find('\n'), std::string::npos);
}

TEST(LibraryOrder, AFileThatIsNoLibraryIsNamedWithTheLoadersReason) {
  const fs::path root = fresh_folder("broken");
  std::ofstream(root / "libhvd_maths.so") << "text";
  gpu::LibrarySearch search;
  search.cudnn_root = root;
  const std::string error = load_error(search);
  EXPECT_NE(error.find("; " + (root / "libhvd_maths.so").string() + ": "), std::string::npos) << error;
  EXPECT_NE(error.find("file too short"), std::string::npos) << error;
}

TEST(LibraryOrder, ALibraryThatWillNotDoIsRefusedByName) {
  const std::vector<std::string> names{"libm.so.6"};
  const gpu::SharedLibrary library(names);
  ASSERT_TRUE(library.loaded());
  EXPECT_EQ(library.path().front(), '/') << "where the loader found it";
  EXPECT_TRUE(library.path().ends_with("/libm.so.6")) << library.path();
  EXPECT_EQ(error_of([&] { gpu::refuse_library(wanted(), library, "is Maths 8"); }),
            "unsupported: " + library.path() +
                " is Maths 8: install Maths 9, or name its folder in LD_LIBRARY_PATH or HVD_CUDNN_ROOT");
}

TEST(LibrarySearch, FindsThePackagesOfEveryPython) {
  const fs::path venv = fresh_folder("venv"), conda = fresh_folder("conda"), home = fresh_folder("home"),
                 extra = fresh_folder("extra"), system = fresh_folder("system");
  const fs::path here = venv / "lib/python3.11/site-packages", debian = system / "lib/python3/dist-packages",
                 numbered = system / "lib/python3.12/site-packages",
                 user = home / ".local/lib/python3.12/site-packages";
  for (const fs::path& folder : {here, debian, numbered, user}) fs::create_directories(folder);
  fs::create_directories(venv / "lib/other/site-packages");
  fs::create_directories(conda / "lib/python3.12");  // a Python folder without site-packages
  fs::create_directories(system / "bin");
  std::ofstream(system / "bin/python3") << "#!/bin/sh\n";
  fs::permissions(system / "bin/python3", fs::perms::owner_all);
  fs::create_directories(extra / "bin");
  fs::create_symlink(system / "bin/python3", extra / "bin/python3");  // links to the python3 in `system`
  const auto search = search_of({{"HVD_CUDNN_ROOT", "/opt/cudnn"},
                                 {"HVD_CUBLAS_ROOT", "/opt/cublas"},
                                 {"HVD_NCCL_ROOT", "/opt/nccl"},
                                 {"VIRTUAL_ENV", venv.string()},
                                 {"CONDA_PREFIX", conda.string()},
                                 {"PYTHONPATH", extra.string() + "::/nowhere:" + here.string()},
                                 {"PATH", "/nowhere::" + (extra / "bin").string() + ":/usr/bin"},
                                 {"HOME", home.string()}});
  EXPECT_EQ(search.cudnn_root, "/opt/cudnn");
  EXPECT_EQ(search.cublas_root, "/opt/cublas");
  EXPECT_EQ(search.nccl_root, "/opt/nccl");
  EXPECT_EQ(search.python_folders, (std::vector<std::string>{here, extra, debian, numbered, user}));
}

TEST(LibrarySearch, AnEmptyEnvironmentLeavesItToTheLoader) {
  const auto search = search_of({});
  EXPECT_TRUE(search.cudnn_root.empty() && search.cublas_root.empty() && search.nccl_root.empty() &&
              search.python_folders.empty());
}

}  // namespace
}  // namespace hvd::test::shared_library_test
