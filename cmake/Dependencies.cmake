# Finds third-party libraries. If a library is absent, its feature is off. With HVD_WITH_<NAME>=ON, the configuration
# stops with an error that says how to get the library.
find_package(Threads REQUIRED)

# hvd_feature(NAME FOUND HOW): sets HVD_HAVE_<NAME> from HVD_WITH_<NAME> and FOUND. The error for an absent library
# contains the advice HOW.
function(hvd_feature name found how)
  set(wanted ${HVD_WITH_${name}})
  if(wanted STREQUAL "ON" AND NOT found)
    message(FATAL_ERROR "HVD_WITH_${name}=ON, but ${name} was not found. ${how}")
  endif()
  if(found AND NOT wanted STREQUAL "OFF")
    set(HVD_HAVE_${name} TRUE PARENT_SCOPE)
  else()
    set(HVD_HAVE_${name} FALSE PARENT_SCOPE)
  endif()
endfunction()

include("${CMAKE_CURRENT_LIST_DIR}/Mpi.cmake")
if(NOT HVD_WITH_MPI STREQUAL "OFF")
  hvd_find_mpi()
endif()
hvd_feature(MPI "${HVD_MPI_FOUND}" "Install it (Debian: apt-get install libopenmpi-dev) or set HVD_WITH_MPI=OFF.")

if(NOT HVD_WITH_ONEDNN STREQUAL "OFF")
  find_package(OneDNN 2.6 QUIET)
endif()
hvd_feature(ONEDNN "${OneDNN_FOUND}"
            "Install it (Debian: apt-get install libdnnl-dev), point HVD_ONEDNN_ROOT at one, or set HVD_WITH_ONEDNN=OFF.")

# hwloc 2.5 is the first version that can read the topology without moving the calling thread between processors.
if(NOT HVD_WITH_HWLOC STREQUAL "OFF")
  find_package(Hwloc 2.5 QUIET)
endif()
hvd_feature(HWLOC "${Hwloc_FOUND}"
            "It needs hwloc 2.5 or newer, with headers: install it (Debian: apt-get install libhwloc-dev), point Hwloc_ROOT at one, or set HVD_WITH_HWLOC=OFF.")

include("${CMAKE_CURRENT_LIST_DIR}/Cuda.cmake")
if(NOT HVD_WITH_CUDA STREQUAL "OFF")
  hvd_find_cuda()
endif()
hvd_feature(CUDA "${CUDAToolkit_FOUND}"
            "There is ${HVD_CUDA_REASON}: scripts/install_deps --cuda fetches one; or set CUDAToolkit_ROOT, or HVD_WITH_CUDA=OFF.")

if(HVD_HAVE_CUDA AND NOT HVD_WITH_CUDNN STREQUAL "OFF")
  find_package(CUDNN 8.9 QUIET)
endif()
hvd_feature(CUDNN "${CUDNN_FOUND}"
            "It needs the CUDA Toolkit, and cuDNN 8.9 or newer with headers; point HVD_CUDNN_ROOT at it, or set HVD_WITH_CUDNN=OFF.")

if(HVD_HAVE_CUDA AND NOT HVD_WITH_NCCL STREQUAL "OFF")
  find_package(NCCL 2.19.3 QUIET)
endif()
hvd_feature(NCCL "${NCCL_FOUND}"
            "It needs the CUDA Toolkit, and NCCL 2.19.3 or newer with its header; point HVD_NCCL_ROOT at it, or set HVD_WITH_NCCL=OFF.")

# Our own kernels also need a CUDA compiler. They are left out if no compiler works.
if(HVD_HAVE_CUDNN)
  hvd_enable_cuda_compiler()
endif()

find_package(CLI11 CONFIG REQUIRED)
find_package(fmt 9 CONFIG REQUIRED)
include("${CMAKE_CURRENT_LIST_DIR}/Sqlite.cmake")
if(HVD_BUILD_TESTS)
  find_package(GTest QUIET)
  if(NOT GTest_FOUND)
    message(FATAL_ERROR "GoogleTest was not found: scripts/install_deps brings it, or set HVD_BUILD_TESTS=OFF.")
  endif()
endif()
if(HVD_BUILD_MICROBENCH)
  find_package(benchmark CONFIG QUIET)
endif()

# hvd_state(RESULT NAME DETAIL): sets RESULT to "yes (DETAIL)" if the feature NAME is used, else to "no".
function(hvd_state result name detail)
  set(${result} "no" PARENT_SCOPE)
  if(HVD_HAVE_${name})
    set(${result} "yes (${detail})" PARENT_SCOPE)
  endif()
endfunction()

function(hvd_print_summary)
  list(JOIN HVD_MPI_ABIS ", " abis)
  hvd_state(mpi MPI "modules: ${abis}; loaded at run time")
  hvd_state(onednn ONEDNN "${OneDNN_VERSION}")
  hvd_state(hwloc HWLOC "${Hwloc_VERSION}")
  hvd_state(cuda CUDA "${CUDAToolkit_VERSION}, ${CUDAToolkit_BIN_DIR}")
  hvd_state(cudnn CUDNN "headers ${CUDNN_VERSION}; loaded at run time")
  hvd_state(nccl NCCL "header ${NCCL_VERSION}; loaded at run time")
  set(gpu_code "not compiled: ${HVD_CUDA_REASON}; scripts/install_deps --cuda fetches one")
  if(HVD_WITH_CUDNN STREQUAL "OFF")
    set(gpu_code "not compiled: HVD_WITH_CUDNN=OFF")
  elseif(HVD_WITH_CUDA STREQUAL "OFF")
    set(gpu_code "not compiled: HVD_WITH_CUDA=OFF")
  elseif(HVD_HAVE_CUDA_KERNELS)
    set(gpu_code "kernels for sm_${CMAKE_CUDA_ARCHITECTURES}")
  elseif(HVD_HAVE_CUDNN)
    set(gpu_code "plans, no kernels of ours: the CUDA Toolkit has no nvcc that works")
  elseif(HVD_HAVE_CUDA)
    set(gpu_code "not compiled: no cuDNN 8.9 or newer with headers; point HVD_CUDNN_ROOT at one")
  endif()
  message(STATUS "hvd_bench ${HVD_VERSION}")
  message(STATUS "  build type  ${CMAKE_BUILD_TYPE} ${HVD_SANITIZE}")
  message(STATUS "  compiler    ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}")
  message(STATUS "  MPI         ${mpi}")
  message(STATUS "  oneDNN      ${onednn}")
  message(STATUS "  hwloc       ${hwloc}")
  message(STATUS "  CUDA        ${cuda}")
  message(STATUS "  cuDNN       ${cudnn}")
  message(STATUS "  GPU code    ${gpu_code}")
  message(STATUS "  NCCL        ${nccl}")
  message(STATUS "  SQLite      ${SQLite3_VERSION}${hvd_sqlite_origin}")
  message(STATUS "  tests       ${HVD_BUILD_TESTS}")
  message(STATUS "  microbench  ${benchmark_FOUND}")
endfunction()
