# Finds the CUDA Toolkit and its compiler, checks their versions, and chooses the GPUs that kernels are compiled for.
set(HVD_OLDEST_CUDA 12.0)

# Sets CUDAToolkit_FOUND and the other CUDAToolkit_ variables. Searches in this order: the user's choice
# (CUDAToolkit_ROOT), the toolkit that scripts/install_deps --cuda put into this checkout, the machine's toolkit. Sets
# HVD_CUDA_REASON to the reason if no toolkit is usable.
macro(hvd_find_cuda)
  set(own_toolkit "${PROJECT_SOURCE_DIR}/build/cuda-toolkit")
  if(NOT DEFINED CUDAToolkit_ROOT AND NOT DEFINED ENV{CUDAToolkit_ROOT} AND EXISTS "${own_toolkit}/wheels.txt")
    set(CUDAToolkit_ROOT "${own_toolkit}")
    if(NOT CUDAToolkit_BIN_DIR STREQUAL "${own_toolkit}/bin")  # the cached folder is that of another toolkit
      foreach(entry NVCC_EXECUTABLE BIN_DIR SENTINEL_FILE INCLUDE_DIR)
        unset(CUDAToolkit_${entry} CACHE)
      endforeach()
      unset(CUDA_CUDART CACHE)
    endif()
  endif()
  # CMake 3.25.1 (Debian 12) sets a property of this target, for which CUDA 13 has no library.
  if(CMAKE_VERSION VERSION_LESS 3.25.2 AND NOT TARGET CUDA::nvToolsExt)
    add_library(CUDA::nvToolsExt INTERFACE IMPORTED)
  endif()
  find_package(CUDAToolkit ${HVD_OLDEST_CUDA} QUIET)
  set(HVD_CUDA_REASON "no CUDA Toolkit ${HVD_OLDEST_CUDA} or newer")
  if(NOT CUDAToolkit_FOUND AND CUDAToolkit_VERSION)
    set(toolkit_folder "${CUDAToolkit_BIN_DIR}")
    if(NOT toolkit_folder)  # CMake 3.31 does not keep the folder of a toolkit that is too old
      find_program(nvcc_found nvcc HINTS "${CUDAToolkit_ROOT}" ENV CUDAToolkit_ROOT PATHS /usr/local/cuda PATH_SUFFIXES bin
                   NO_CACHE)
      get_filename_component(toolkit_folder "${nvcc_found}" DIRECTORY)
    endif()
    string(APPEND HVD_CUDA_REASON " (that in ${toolkit_folder} is ${CUDAToolkit_VERSION})")
  endif()
endmacro()

# hvd_cuda_architectures(RESULT VERSION): sets RESULT to the default of CMAKE_CUDA_ARCHITECTURES: P100 and V100 (if this
# CUDA version supports them), A100 and H100, and from CUDA 12.8 on B200 and RTX PRO 6000. For other newer GPUs the driver
# compiles the H100's PTX. clang learned of Blackwell later than nvcc.
function(hvd_cuda_architectures result version)
  set(architectures 80 90)
  if(version VERSION_LESS 13)
    list(PREPEND architectures 60 70)
  endif()
  if(version VERSION_GREATER_EQUAL 12.8 AND NOT "${CMAKE_CUDA_COMPILER}$ENV{CUDACXX}" MATCHES "clang")
    list(APPEND architectures 100-real 120-real)
  endif()
  set(${result} ${architectures} PARENT_SCOPE)
endfunction()

# hvd_oldest_cuda_architecture(RESULT): sets RESULT to the oldest architecture in CMAKE_CUDA_ARCHITECTURES, for example
# 75 for "75-real;80-virtual", or to 0 for "native" and similar words. hvd_bench refuses GPUs older than RESULT.
function(hvd_oldest_cuda_architecture result)
  string(REGEX MATCHALL "[0-9]+" architectures "${CMAKE_CUDA_ARCHITECTURES}")
  list(SORT architectures COMPARE NATURAL)
  list(APPEND architectures 0)
  list(GET architectures 0 oldest)
  set(${result} ${oldest} PARENT_SCOPE)
endfunction()

# hvd_refuse_cuda_architectures(VERSION ARCHITECTURE...): stops with an error that names an architecture that this CUDA
# Toolkit no longer supports. Without this error, check_language() would fail and report that there is no compiler.
function(hvd_refuse_cuda_architectures version)
  if(version VERSION_LESS 13)
    return()
  endif()
  foreach(architecture ${ARGN})
    if(architecture MATCHES "^([0-9]+)[af]?(-real|-virtual)?$" AND CMAKE_MATCH_1 LESS 75)
      message(FATAL_ERROR "CUDA ${version} compiles for compute capability 7.5 and newer, not for "
              "CMAKE_CUDA_ARCHITECTURES=${architecture}: use a CUDA Toolkit 12 (-DCUDAToolkit_ROOT=...) for older GPUs.")
    endif()
  endforeach()
endfunction()

# Stops with an error if the compiler's major version differs from that of the toolkit with the headers and runtime.
function(hvd_refuse_mixed_cuda)
  string(REGEX MATCH "^[0-9]+" compiler "${CMAKE_CUDA_COMPILER_VERSION}")
  if(CMAKE_CUDA_COMPILER_ID STREQUAL "NVIDIA" AND NOT compiler EQUAL CUDAToolkit_VERSION_MAJOR)
    message(FATAL_ERROR "${CMAKE_CUDA_COMPILER} is of CUDA ${CMAKE_CUDA_COMPILER_VERSION}, the CUDA Toolkit in "
            "${CUDAToolkit_BIN_DIR} is ${CUDAToolkit_VERSION}: set CUDAToolkit_ROOT to the one that is wanted.")
  endif()
endfunction()

# Sets HVD_HAVE_CUDA_KERNELS if there is a compiler that works: the toolkit's own, or the one that the user named
# (CMAKE_CUDA_COMPILER, CUDACXX). An nvcc in PATH is not used, because it may belong to another toolkit.
macro(hvd_enable_cuda_compiler)
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX} AND CUDAToolkit_NVCC_EXECUTABLE)
    set(ENV{CUDACXX} "${CUDAToolkit_NVCC_EXECUTABLE}")
  endif()
  # If the cached value is the default of an earlier configuration, compute it again: the toolkit may have changed.
  if((NOT CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
     OR (CMAKE_CUDA_ARCHITECTURES AND CMAKE_CUDA_ARCHITECTURES STREQUAL "${HVD_DEFAULT_CUDA_ARCHITECTURES}"))
    hvd_cuda_architectures(architectures "${CUDAToolkit_VERSION}")
    set(CMAKE_CUDA_ARCHITECTURES ${architectures} CACHE STRING "GPU generations to compile kernels for" FORCE)
    set(HVD_DEFAULT_CUDA_ARCHITECTURES ${architectures} CACHE INTERNAL "what the default was")
  endif()
  hvd_refuse_cuda_architectures("${CUDAToolkit_VERSION}" ${CMAKE_CUDA_ARCHITECTURES} $ENV{CUDAARCHS})
  if(HVD_CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${HVD_CCACHE})
  endif()
  if(CMAKE_CUDA_COMPILER OR DEFINED ENV{CUDACXX})
    include(CheckLanguage)
    check_language(CUDA)
  endif()
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    hvd_refuse_mixed_cuda()
    # The folders of nvcc's host compiler must not come before those of the C++ compiler, which links: a newer g++ would
    # find the older one's libstdc++ there.
    list(FILTER CMAKE_CUDA_IMPLICIT_LINK_DIRECTORIES EXCLUDE REGEX "/gcc/")
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc 12 and 13 compile C++20
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    endif()
    set(HVD_HAVE_CUDA_KERNELS TRUE)
  elseif(HVD_WITH_CUDNN STREQUAL "ON")
    message(FATAL_ERROR "HVD_WITH_CUDNN=ON, but the CUDA Toolkit in ${CUDAToolkit_BIN_DIR} has no nvcc that works: "
            "complete it, name a compiler (CUDACXX), or set HVD_WITH_CUDNN=OFF.")
  endif()
endmacro()
