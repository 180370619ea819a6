# Finds cuDNN's headers, and its library to look at first: CUDNN_FOUND, CUDNN_VERSION, CUDNN_INCLUDE_DIR, CUDNN_LIBRARY.
# Hints: HVD_CUDNN_ROOT, CUDNN_ROOT, the CUDA Toolkit.
#
# Nothing is linked: the backend loads the library at run time. Python wheels and module trees carry versioned names
# only (libcudnn.so.9), so those are looked for too; that none is found is no fault, one may be there at run time.
set(CUDNN_HINTS ${HVD_CUDNN_ROOT} ${CUDNN_ROOT} $ENV{CUDNN_ROOT} ${CUDAToolkit_INCLUDE_DIRS} ${CUDAToolkit_LIBRARY_ROOT})
find_path(CUDNN_INCLUDE_DIR cudnn_backend.h HINTS ${CUDNN_HINTS} PATH_SUFFIXES include)
find_library(CUDNN_LIBRARY NAMES libcudnn.so.9 libcudnn.so.8 cudnn
             HINTS ${CUDNN_HINTS} ${CUDAToolkit_LIBRARY_DIR} PATH_SUFFIXES lib lib64 lib/x86_64-linux-gnu)

if(CUDNN_INCLUDE_DIR)
  foreach(header cudnn_version_v9.h cudnn_version_v8.h cudnn_version.h)
    if(NOT CUDNN_VERSION AND EXISTS "${CUDNN_INCLUDE_DIR}/${header}")
      file(STRINGS "${CUDNN_INCLUDE_DIR}/${header}" lines REGEX "define CUDNN_(MAJOR|MINOR|PATCHLEVEL) +[0-9]+")
      foreach(part MAJOR MINOR PATCHLEVEL)
        if(lines MATCHES "CUDNN_${part} +([0-9]+)")
          set(CUDNN_VERSION_${part} ${CMAKE_MATCH_1})
        endif()
      endforeach()
      if(DEFINED CUDNN_VERSION_MAJOR)
        set(CUDNN_VERSION "${CUDNN_VERSION_MAJOR}.${CUDNN_VERSION_MINOR}.${CUDNN_VERSION_PATCHLEVEL}")
      endif()
    endif()
  endforeach()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(CUDNN REQUIRED_VARS CUDNN_INCLUDE_DIR VERSION_VAR CUDNN_VERSION)
mark_as_advanced(CUDNN_INCLUDE_DIR CUDNN_LIBRARY)
