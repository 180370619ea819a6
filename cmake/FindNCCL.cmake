# Finds NCCL's header, and the library that the program tries to load first. Sets NCCL_FOUND, NCCL_VERSION,
# NCCL_INCLUDE_DIR and NCCL_LIBRARY. Hints: HVD_NCCL_ROOT, NCCL_ROOT, the CUDA Toolkit.
#
# Nothing is linked: the data plane loads the library at run time. Python wheels and module trees have only versioned
# names (libnccl.so.2), so find_library also searches for these names. A missing library is no error: the user may
# install it after the build.
set(NCCL_HINTS ${HVD_NCCL_ROOT} ${NCCL_ROOT} $ENV{NCCL_ROOT} ${CUDAToolkit_INCLUDE_DIRS} ${CUDAToolkit_LIBRARY_ROOT})
find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${NCCL_HINTS} PATH_SUFFIXES include)
find_library(NCCL_LIBRARY NAMES libnccl.so.2 nccl
             HINTS ${NCCL_HINTS} ${CUDAToolkit_LIBRARY_DIR}
             PATH_SUFFIXES lib lib64 lib/${CMAKE_LIBRARY_ARCHITECTURE} targets/sbsa-linux/lib)

include("${CMAKE_CURRENT_LIST_DIR}/HeaderVersion.cmake")
hvd_header_version(NCCL_VERSION NCCL_ PATCH "${NCCL_INCLUDE_DIR}/nccl.h")

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NCCL REQUIRED_VARS NCCL_INCLUDE_DIR VERSION_VAR NCCL_VERSION)
mark_as_advanced(NCCL_INCLUDE_DIR NCCL_LIBRARY)
