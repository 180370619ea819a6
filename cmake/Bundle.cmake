# `cmake --build --target bundle` makes a folder and a tar that run on hosts without our libraries (docs/gpu_check.md).
find_program(HVD_PATCHELF patchelf)
find_package(Python3 3.10 COMPONENTS Interpreter QUIET)
if(NOT HVD_PATCHELF OR NOT Python3_Interpreter_FOUND)
  add_custom_target(bundle COMMAND ${CMAKE_COMMAND} -E echo
    "bundle: needs patchelf and Python 3.10 (Debian: apt-get install patchelf python3), then configure again"
    COMMAND ${CMAKE_COMMAND} -E false VERBATIM)
  return()
endif()

set(bundle_programs "")
foreach(program hvd_bench train_step_bench allreduce_bench engine_bench cudnn_device)
  if(TARGET ${program})
    list(APPEND bundle_programs ${program})
  endif()
endforeach()
set(bundle_files "")
foreach(program ${bundle_programs})
  list(APPEND bundle_files $<TARGET_FILE:${program}>)
endforeach()
set(bundle_mpi "")
if(HVD_HAVE_MPI)
  set(bundle_mpi --mpirun "${MPIEXEC_EXECUTABLE}")
endif()
get_property(bundle_tests GLOBAL PROPERTY HVD_GPU_TESTS)
set(HVD_BUNDLE "${CMAKE_BINARY_DIR}/bundle/hvd_bench-${PROJECT_VERSION}-${CMAKE_SYSTEM_PROCESSOR}")
add_custom_target(bundle
  COMMAND ${Python3_EXECUTABLE} -B "${PROJECT_SOURCE_DIR}/scripts/maintain/bundle/make.py" --build "${CMAKE_BINARY_DIR}"
          --output "${HVD_BUNDLE}" --patchelf "${HVD_PATCHELF}" --ctest "${CMAKE_CTEST_COMMAND}" ${bundle_mpi} ${bundle_files}
  DEPENDS ${bundle_programs} ${bundle_tests} COMMENT "Making the bundle" VERBATIM)
