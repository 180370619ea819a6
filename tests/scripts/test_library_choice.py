"""Tests which libraries CMake chooses, and its messages for unsuitable ones.

cmake/Cuda.cmake: the CUDA Toolkit and the target GPUs. cmake/Sqlite.cmake: the system's SQLite or a source folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from limits import HANG

from harness import FolderTest, execute
from synthetic_store import REPOSITORY

MODULE = REPOSITORY / "cmake" / "Cuda.cmake"
NVCC = """#!/bin/sh
case $1 in
--version) echo "Cuda compilation tools, release {short}, V{version}" ;;
*) echo '#$ TOP={root}' ;;
esac
"""
PROJECT = """cmake_minimum_required(VERSION 3.25)
project(asks LANGUAGES CXX)
set(HVD_WITH_CUDNN AUTO CACHE STRING "as in Options.cmake")
include("MODULE")
hvd_find_cuda()
if(NOT CUDAToolkit_FOUND)
  message(FATAL_ERROR "${HVD_CUDA_REASON}")
endif()
hvd_enable_cuda_compiler()
message(STATUS "took ${CUDAToolkit_VERSION} kernels=${HVD_HAVE_CUDA_KERNELS} sm=${CMAKE_CUDA_ARCHITECTURES}.")
"""

SQLITE = REPOSITORY / "cmake" / "Sqlite.cmake"
SQLITE_PROJECT = """cmake_minimum_required(VERSION 3.25)
project(asks LANGUAGES CXX)
set(CMAKE_CXX_FLAGS "-Wall -Wextra -Wpedantic -Werror")
find_package(Threads REQUIRED)
include("MODULE")
message(STATUS "took ${SQLite3_VERSION}${hvd_sqlite_origin}.")
add_executable(shows main.cpp)
set_target_properties(shows PROPERTIES ENABLE_EXPORTS ON)
target_link_libraries(shows PRIVATE SQLite::SQLite3)
"""
SHOWS = """#include <sqlite3.h>
#include <cstdio>
int main() { std::puts(sqlite3_libversion()); }
"""
# Stand in for SQLite's sources; the compiler warns about both.
SQLITE_H = """#define SQLITE_VERSION        "{version}"
#ifdef __cplusplus
extern "C" {{
#endif
const char* sqlite3_libversion(void);
static int unused;
#ifdef __cplusplus
}}
#endif
"""
SQLITE_C = """#include "sqlite3.h"
const char* sqlite3_libversion(void) { int unused; return SQLITE_VERSION; }
"""


def cmake(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CUDA")}
    words = ["cmake", *map(str, arguments)]
    return execute(*words, env=environment, timeout=HANG)


def toolkit(root: Path, version: str) -> Path:
    """Makes a folder that CMake accepts as a CUDA Toolkit. The Toolkit's nvcc compiles nothing."""
    for folder in ("bin", "include", "lib64"):
        (root / folder).mkdir(parents=True)
    nvcc = root / "bin" / "nvcc"
    nvcc.write_text(NVCC.format(root=root, version=version, short=version.rpartition(".")[0]))
    nvcc.chmod(0o755)
    (root / "include" / "cuda_runtime.h").touch()
    (root / "lib64" / "libcudart.so").touch()
    return root


class CudaChoiceTest(FolderTest):
    def script(self, text: str) -> subprocess.CompletedProcess[str]:
        file = self.folder / "script.cmake"
        file.write_text(f'include("{MODULE}")\n{text}\n')
        return cmake("-P", file)

    def configure(self, *arguments: str) -> str:
        """Configures a project that asks for CUDA. Returns CMake's output as one line."""
        (self.folder / "CMakeLists.txt").write_text(PROJECT.replace("MODULE", str(MODULE)))
        done = cmake("-S", self.folder, "-B", self.folder / "out", "-G", "Ninja", *arguments)
        return " ".join((done.stdout + done.stderr).split())

    def test_default_architectures_follow_the_toolkit(self) -> None:
        for version, expected in (
            ("12.0.140", "60;70;80;90"),
            ("12.6.85", "60;70;80;90"),
            ("12.8.61", "60;70;80;90;100-real;120-real"),
            ("13.0.88", "80;90;100-real;120-real"),
        ):
            said = self.script(f'hvd_cuda_architectures(got {version})\nmessage("${{got}}")')
            self.assertEqual(said.stderr.strip(), expected, version)

    def test_gpus_that_cuda_13_gave_up_are_refused_by_name(self) -> None:
        for architecture in ("60", "70-real", "72-virtual"):
            said = self.script(f"hvd_refuse_cuda_architectures(13.0.88 80 {architecture})")
            self.assertNotEqual(said.returncode, 0)
            line = " ".join(said.stderr.split())
            self.assertIn(f"not for CMAKE_CUDA_ARCHITECTURES={architecture}: use a CUDA Toolkit 12", line)
        for arguments in ("13.0.88 75 90a native all-major 100f-real", "12.9.86 60 70"):
            self.assertEqual(self.script(f"hvd_refuse_cuda_architectures({arguments})").returncode, 0, arguments)

    def test_a_toolkit_that_is_too_old_is_named(self) -> None:
        old = toolkit(self.folder / "cuda-11.8", "11.8.89")
        self.assertIn(
            f"no CUDA Toolkit 12.0 or newer (that in {old}/bin is 11.8.89)", self.configure(f"-DCUDAToolkit_ROOT={old}")
        )

    def test_what_was_installed_into_the_checkout_is_taken_and_the_users_choices_stand(self) -> None:
        mine = toolkit(self.folder / "build" / "cuda-toolkit", "13.0.88")
        (mine / "wheels.txt").touch()
        self.assertIn("took 13.0.88 kernels= sm=80;90;100-real;120-real.", self.configure())
        self.assertIn("sm=75-real.", self.configure("-DCMAKE_CUDA_ARCHITECTURES=75-real"))
        self.assertIn(f"the CUDA Toolkit in {mine}/bin has no nvcc that works", self.configure("-DHVD_WITH_CUDNN=ON"))
        other = toolkit(self.folder / "cuda-12.4", "12.4.131")
        fresh = ("--fresh", f"-DCUDAToolkit_ROOT={other}")
        self.assertIn("took 12.4.131 kernels= sm=60;70;80;90.", self.configure(*fresh))

    def test_a_default_is_no_choice_and_follows_a_newer_toolkit(self) -> None:
        root = toolkit(self.folder / "cuda", "12.4.131")
        self.assertIn("took 12.4.131 kernels= sm=60;70;80;90.", self.configure(f"-DCUDAToolkit_ROOT={root}"))
        shutil.rmtree(root)
        toolkit(root, "13.0.88")
        self.assertIn("took 13.0.88 kernels= sm=80;90;100-real;120-real.", self.configure())
        self.assertIn("not for CMAKE_CUDA_ARCHITECTURES=70:", self.configure("-DCMAKE_CUDA_ARCHITECTURES=70;80"))


class SqliteChoiceTest(FolderTest):
    def configure(self, *arguments: str) -> str:
        """Configures a project that asks for SQLite. Returns CMake's output as one line."""
        (self.folder / "CMakeLists.txt").write_text(SQLITE_PROJECT.replace("MODULE", str(SQLITE)))
        (self.folder / "main.cpp").write_text(SHOWS)
        done = cmake("-S", self.folder, "-B", self.folder / "out", "-G", "Ninja", "--fresh", *arguments)
        return " ".join((done.stdout + done.stderr).split())

    def source(self, version: str) -> Path:
        """Makes a folder that CMake takes for SQLite's source."""
        made = self.folder / f"sqlite-{version}"
        made.mkdir()
        (made / "sqlite3.h").write_text(SQLITE_H.format(version=version))
        (made / "sqlite3.c").write_text(SQLITE_C)
        return made

    def test_a_source_is_compiled_in_without_warnings_and_hidden(self) -> None:
        source = self.source("3.99.1")
        self.assertIn(f"took 3.99.1, compiled from {source}.", self.configure(f"-DHVD_SQLITE_SOURCE={source}"))
        built = cmake("--build", self.folder / "out", "--verbose")
        self.assertEqual(built.returncode, 0, built.stdout + built.stderr)
        self.assertNotIn("warning", built.stdout)
        program = self.folder / "out" / "shows"
        self.assertEqual(execute(program, code=0).stdout, "3.99.1\n")
        self.assertNotIn("sqlite3_libversion", execute("nm", "-D", program, code=0).stdout)

    def test_a_source_that_is_none_or_too_old_is_refused(self) -> None:
        old = self.source("3.36.0")
        said = self.configure(f"-DHVD_SQLITE_SOURCE={old}")
        self.assertIn(f"HVD_SQLITE_SOURCE: {old} holds SQLite '3.36.0', and 3.37 or newer is needed.", said)
        (old / "sqlite3.h").write_text("\n")
        self.assertIn("holds SQLite '', and 3.37", self.configure(f"-DHVD_SQLITE_SOURCE={old}"))
        (old / "sqlite3.c").unlink()
        for folder in (old, self.folder / "nowhere"):
            said = self.configure(f"-DHVD_SQLITE_SOURCE={folder}")
            self.assertIn(f"there is no {folder}/sqlite3.c. In SQLite's source tree, `./configure && make", said)

    def test_a_system_whose_sqlite_is_too_old_is_told_of_the_option(self) -> None:
        old = self.source("3.34.1")
        (old / "libsqlite3.so").touch()
        said = self.configure(f"-DSQLite3_INCLUDE_DIR={old}", f"-DSQLite3_LIBRARY={old}/libsqlite3.so")
        self.assertIn("SQLite 3.37 or newer, with headers, was not found (here is: 3.34.1). Install it", said)
        self.assertIn("or point HVD_SQLITE_SOURCE at a folder with sqlite3.c and sqlite3.h.", said)
