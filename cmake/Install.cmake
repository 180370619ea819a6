# Installation and the exported package: find_package(hvd_bench CONFIG) defines hvd::engine and the targets it needs.
# Component `engine` is the library; component `program` is the benchmark.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/hvd_bench")
set(header_dir include/hvd_bench)  # the include folder in hvd_settings' install interface

set_target_properties(hvd_settings PROPERTIES EXPORT_NAME settings)
set(linked "")
if(HVD_LINKS_MPI)
  # Programs that use the installed library link the MPI that it was built with. hvd_bench loads one.
  target_link_libraries(hvd_engine PUBLIC $<INSTALL_INTERFACE:hvd::mpi>)
  set(linked hvd_mpi)
endif()
install(TARGETS hvd_settings hvd_base hvd_core hvd_gpu hvd_comm hvd_engine ${linked} EXPORT hvd_bench
        ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT engine)
install(EXPORT hvd_bench NAMESPACE hvd:: DESTINATION "${package_dir}" COMPONENT engine)

install(DIRECTORY "${PROJECT_SOURCE_DIR}/engine/base" "${PROJECT_SOURCE_DIR}/engine/core"
        DESTINATION "${header_dir}/engine" COMPONENT engine FILES_MATCHING PATTERN "*.h")
install(FILES "${PROJECT_SOURCE_DIR}/engine/comm/chunks.h" "${PROJECT_SOURCE_DIR}/engine/comm/communicator.h"
  DESTINATION "${header_dir}/engine/comm"
        COMPONENT engine)
install(FILES "${PROJECT_SOURCE_DIR}/engine/gpu/device.h" "${PROJECT_SOURCE_DIR}/engine/gpu/runtime.h"
              "${PROJECT_SOURCE_DIR}/engine/gpu/timer.h"
  DESTINATION "${header_dir}/engine/gpu" COMPONENT engine)
if(HVD_LINKS_MPI)
  install(FILES "${PROJECT_SOURCE_DIR}/engine/comm/mpi/from_communicator.h" DESTINATION "${header_dir}/engine/comm/mpi"
          COMPONENT engine)
endif()
install(FILES "${PROJECT_SOURCE_DIR}/engine/runtime/engine.h" DESTINATION "${header_dir}/engine/runtime"
        COMPONENT engine)

configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/hvd_bench-config.cmake.in"
                              "${CMAKE_CURRENT_BINARY_DIR}/hvd_bench-config.cmake"
                              INSTALL_DESTINATION "${package_dir}")
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file("${CMAKE_CURRENT_BINARY_DIR}/hvd_bench-config-version.cmake"
                                 VERSION ${PROJECT_VERSION} COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/hvd_bench-config.cmake"
              "${CMAKE_CURRENT_BINARY_DIR}/hvd_bench-config-version.cmake"
        DESTINATION "${package_dir}" COMPONENT engine)
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DATADIR}/licenses/hvd_bench"
        COMPONENT engine)

# The program looks in share beside its folder for the recorded steps (bench/world/shipped_steps.cpp), and in lib for
# the modules for MPI (engine/comm/mpi/library.cpp), so that a user can move the prefix, and a build finds them as an
# installation does. Nobody links the modules, so they lie in lib where libraries go to lib64.
cmake_path(SET modules_dir NORMALIZE "${CMAKE_INSTALL_BINDIR}/../lib/hvd_bench")
set(steps_from_bin ../share/hvd_bench/steps)
cmake_path(SET steps_dir NORMALIZE "${CMAKE_INSTALL_BINDIR}/${steps_from_bin}")
set(step_files "")
foreach(step gpt2 llama)
  set(step_file "${PROJECT_SOURCE_DIR}/results/steps/${step}.replay")
  configure_file("${step_file}" "${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/${steps_from_bin}/${step}.replay" COPYONLY)
  list(APPEND step_files "${step_file}")
endforeach()
install(FILES ${step_files} DESTINATION "${steps_dir}" COMPONENT program)
if(TARGET hvd_bench)
  install(TARGETS hvd_bench RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT program)
  foreach(abi IN LISTS HVD_MPI_ABIS)
    install(TARGETS hvd_mpi_${abi} LIBRARY DESTINATION "${modules_dir}" COMPONENT program)
  endforeach()
endif()
