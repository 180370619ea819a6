# Finds oneDNN by its header and library. Sets OneDNN_FOUND and OneDNN_VERSION and makes the target DNNL::dnnl.
# Hint: HVD_ONEDNN_ROOT.
#
# oneDNN's own CMake package file is not used: Debian's file (oneDNN 2.6) demands the OpenCL headers, which a CPU user
# does not need, and the package file in Python wheels does not find the wheel's library. Some wheels have only
# versioned library names.
find_path(OneDNN_INCLUDE_DIR oneapi/dnnl/dnnl.hpp HINTS ${HVD_ONEDNN_ROOT} PATH_SUFFIXES include)
find_library(OneDNN_LIBRARY NAMES dnnl libdnnl.so.3 libdnnl.so.2 HINTS ${HVD_ONEDNN_ROOT} PATH_SUFFIXES lib lib64)

include("${CMAKE_CURRENT_LIST_DIR}/HeaderVersion.cmake")
hvd_header_version(OneDNN_VERSION DNNL_VERSION_ PATCH "${OneDNN_INCLUDE_DIR}/oneapi/dnnl/dnnl_version.h"
                   "${OneDNN_INCLUDE_DIR}/oneapi/dnnl/dnnl_version_hash.h")

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(OneDNN REQUIRED_VARS OneDNN_LIBRARY OneDNN_INCLUDE_DIR VERSION_VAR OneDNN_VERSION)

if(OneDNN_FOUND AND NOT TARGET DNNL::dnnl)
  add_library(DNNL::dnnl UNKNOWN IMPORTED)
  set_target_properties(DNNL::dnnl PROPERTIES
    IMPORTED_LOCATION "${OneDNN_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${OneDNN_INCLUDE_DIR}"
    INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${OneDNN_INCLUDE_DIR}")
endif()
mark_as_advanced(OneDNN_INCLUDE_DIR OneDNN_LIBRARY)
