# Toolchain file: compiles on x86-64 for 64-bit Arm with Debian's cross compiler, and runs the tests with qemu.
# HVD_SYSROOT is a folder with Debian's arm64 packages; scripts/maintain/try_arm makes one.
#
#   cmake --preset release -B build/arm/release --toolchain cmake/aarch64.cmake -DHVD_SYSROOT=$PWD/build/arm/sysroot
set(HVD_SYSROOT "" CACHE PATH "Folder with arm64 packages")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES HVD_SYSROOT)

set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_SYSROOT "${HVD_SYSROOT}")
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -L "${HVD_SYSROOT}")

set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)

# The compiler wrappers of the host's MPI and its pkg-config name the host's files.
set(open_mpi "${HVD_SYSROOT}/usr/lib/aarch64-linux-gnu/openmpi")
set(MPI_SKIP_COMPILER_WRAPPER ON)
set(MPI_CXX_SKIP_MPICXX ON CACHE BOOL "")
set(CMAKE_DISABLE_FIND_PACKAGE_PkgConfig ON)
set(MPI_CXX_LIB_NAMES mpi CACHE STRING "")
set(MPI_mpi_LIBRARY "${open_mpi}/lib/libmpi.so" CACHE FILEPATH "")
set(MPI_CXX_HEADER_DIR "${open_mpi}/include" CACHE PATH "")
