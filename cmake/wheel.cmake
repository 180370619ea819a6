# Toolchain file of the wheel: compiles with Debian 12's g++ for the C library of Debian 11. scripts/lib/wheel.sh makes
# HVD_SYSROOT, a folder with the packages that the program is compiled against, and calls CMake.
set(HVD_SYSROOT "" CACHE PATH "Folder with the headers and libraries of the wheel")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES HVD_SYSROOT)
set(CMAKE_SYSROOT "${HVD_SYSROOT}")
set(CMAKE_C_COMPILER gcc-12)
set(CMAKE_CXX_COMPILER g++-12)

set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_DISABLE_FIND_PACKAGE_PkgConfig ON)  # it names files of this machine
set(CMAKE_DISABLE_FIND_PACKAGE_MPI ON)  # the sysroot has only headers of MPI

foreach(feature MPI ONEDNN HWLOC)
  set(HVD_WITH_${feature} ON CACHE STRING "")
endforeach()
set(HVD_WITH_CUDA OFF CACHE STRING "")
set(HVD_FMT fmt::fmt-header-only CACHE STRING "")

# The libraries that lie in the wheel. libgomp is Debian 11's: it runs on older systems than g++ 12's, and oneDNN uses
# the same one.
set(libraries "${HVD_SYSROOT}/usr/lib/x86_64-linux-gnu")
set(OpenMP_gomp_LIBRARY "${libraries}/libgomp.so.1" CACHE FILEPATH "")
set(HVD_WHEEL_LIBRARIES "${libraries}/libdnnl.so.2" "${libraries}/libgomp.so.1")

# The program holds libstdc++, because older systems have older ones. Hidden, so that oneDNN uses the system's.
# Without -B, g++ takes this machine's C library, which lies beside its own libraries.
set(CMAKE_EXE_LINKER_FLAGS_INIT
  "-B${libraries} -B${HVD_SYSROOT}/lib/x86_64-linux-gnu -static-libstdc++ -Wl,--exclude-libs,ALL")
set(CMAKE_MODULE_LINKER_FLAGS_INIT "${CMAKE_EXE_LINKER_FLAGS_INIT}")
# Static libraries name no libraries of their own, and in this C library these are not part of libc.
set(CMAKE_CXX_STANDARD_LIBRARIES "-lpthread -ldl -lrt -lm")
