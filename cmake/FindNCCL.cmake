# Finds NCCL's header, and its library to look at first: NCCL_FOUND, NCCL_VERSION, NCCL_INCLUDE_DIR, NCCL_LIBRARY.
# Hints: HVD_NCCL_ROOT, NCCL_ROOT, the CUDA Toolkit.
#
# Nothing is linked: the data plane loads the library at run time. Python wheels and module trees carry versioned names
# only (libnccl.so.2), so those are looked for too; that none is found is no fault, one may be there at run time.
set(NCCL_HINTS ${HVD_NCCL_ROOT} ${NCCL_ROOT} $ENV{NCCL_ROOT} ${CUDAToolkit_INCLUDE_DIRS} ${CUDAToolkit_LIBRARY_ROOT})
find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${NCCL_HINTS} PATH_SUFFIXES include)
find_library(NCCL_LIBRARY NAMES libnccl.so.2 nccl
             HINTS ${NCCL_HINTS} ${CUDAToolkit_LIBRARY_DIR} PATH_SUFFIXES lib lib64 lib/x86_64-linux-gnu)

if(NCCL_INCLUDE_DIR AND EXISTS "${NCCL_INCLUDE_DIR}/nccl.h")
  file(STRINGS "${NCCL_INCLUDE_DIR}/nccl.h" lines REGEX "define NCCL_(MAJOR|MINOR|PATCH) +[0-9]+")
  foreach(part MAJOR MINOR PATCH)
    if(lines MATCHES "NCCL_${part} +([0-9]+)")
      set(NCCL_VERSION_${part} ${CMAKE_MATCH_1})
    endif()
  endforeach()
  if(DEFINED NCCL_VERSION_MAJOR)
    set(NCCL_VERSION "${NCCL_VERSION_MAJOR}.${NCCL_VERSION_MINOR}.${NCCL_VERSION_PATCH}")
  endif()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NCCL REQUIRED_VARS NCCL_INCLUDE_DIR VERSION_VAR NCCL_VERSION)
mark_as_advanced(NCCL_INCLUDE_DIR NCCL_LIBRARY)
