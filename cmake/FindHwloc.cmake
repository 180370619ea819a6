# Finds hwloc by its header and library. Sets Hwloc_FOUND and Hwloc_VERSION and makes the target hwloc::hwloc.
# Hint: Hwloc_ROOT.
find_path(Hwloc_INCLUDE_DIR hwloc.h)
find_path(Hwloc_CONFIG_DIR hwloc/autogen/config.h)  # Debian has config.h in the folder of the architecture
find_library(Hwloc_LIBRARY NAMES hwloc)

include("${CMAKE_CURRENT_LIST_DIR}/HeaderVersion.cmake")
hvd_header_version(Hwloc_VERSION HWLOC_VERSION_ RELEASE "${Hwloc_CONFIG_DIR}/hwloc/autogen/config.h")

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Hwloc REQUIRED_VARS Hwloc_LIBRARY Hwloc_INCLUDE_DIR Hwloc_CONFIG_DIR VERSION_VAR Hwloc_VERSION)

if(Hwloc_FOUND AND NOT TARGET hwloc::hwloc)
  add_library(hwloc::hwloc UNKNOWN IMPORTED)
  set_target_properties(hwloc::hwloc PROPERTIES
    IMPORTED_LOCATION "${Hwloc_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${Hwloc_INCLUDE_DIR};${Hwloc_CONFIG_DIR}"
    INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${Hwloc_INCLUDE_DIR};${Hwloc_CONFIG_DIR}")
endif()
mark_as_advanced(Hwloc_INCLUDE_DIR Hwloc_CONFIG_DIR Hwloc_LIBRARY)
