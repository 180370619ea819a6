# Finds cuDNN's headers, and the library that the program tries to load first. Sets CUDNN_FOUND, CUDNN_VERSION,
# CUDNN_INCLUDE_DIR and CUDNN_LIBRARY. Hints: HVD_CUDNN_ROOT, CUDNN_ROOT, the CUDA Toolkit.
#
# Nothing is linked: the backend loads the library at run time. Python wheels and module trees have only versioned names
# (libcudnn.so.9), so find_library also searches for these names. A missing library is no error: the user may install it
# after the build.
set(CUDNN_HINTS ${HVD_CUDNN_ROOT} ${CUDNN_ROOT} $ENV{CUDNN_ROOT} ${CUDAToolkit_INCLUDE_DIRS} ${CUDAToolkit_LIBRARY_ROOT})
find_path(CUDNN_INCLUDE_DIR cudnn_backend.h HINTS ${CUDNN_HINTS} PATH_SUFFIXES include)
find_library(CUDNN_LIBRARY NAMES libcudnn.so.9 libcudnn.so.8 cudnn
             HINTS ${CUDNN_HINTS} ${CUDAToolkit_LIBRARY_DIR}
             PATH_SUFFIXES lib lib64 lib/${CMAKE_LIBRARY_ARCHITECTURE} targets/sbsa-linux/lib)

include("${CMAKE_CURRENT_LIST_DIR}/HeaderVersion.cmake")
hvd_header_version(CUDNN_VERSION CUDNN_ PATCHLEVEL "${CUDNN_INCLUDE_DIR}/cudnn_version_v9.h"
                   "${CUDNN_INCLUDE_DIR}/cudnn_version_v8.h" "${CUDNN_INCLUDE_DIR}/cudnn_version.h")

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(CUDNN REQUIRED_VARS CUDNN_INCLUDE_DIR VERSION_VAR CUDNN_VERSION)
mark_as_advanced(CUDNN_INCLUDE_DIR CUDNN_LIBRARY)
