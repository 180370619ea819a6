# `cmake --build build/release --target bundle` makes an archive for GPU hosts (docs/gpu_check.md).
get_property(bundle_programs GLOBAL PROPERTY HVD_GPU_TESTS)
foreach(program hvd_bench train_step_bench cudnn_device)
  if(TARGET ${program})
    list(APPEND bundle_programs ${program})
  endif()
endforeach()
list(TRANSFORM bundle_programs REPLACE "(.+)" "$<TARGET_FILE:\\1>" OUTPUT_VARIABLE bundle_files)
add_custom_target(bundle COMMAND "${PROJECT_SOURCE_DIR}/scripts/maintain/bundle" "${CMAKE_BINARY_DIR}" ${bundle_files}
  DEPENDS ${bundle_programs} COMMENT "Making the bundle" VERBATIM)
