# Installs what a wheel holds (pyproject.toml): pip puts the program into bin/ of its environment. A wheel of
# scripts/build wheel also brings the libraries that the toolchain file names.
install(TARGETS hvd_bench RUNTIME DESTINATION "${SKBUILD_SCRIPTS_DIR}" COMPONENT wheel)
foreach(abi IN LISTS HVD_MPI_ABIS)
  install(TARGETS hvd_mpi_${abi} LIBRARY DESTINATION "${SKBUILD_DATA_DIR}/lib/hvd_bench" COMPONENT wheel)
endforeach()
install(FILES ${step_files} DESTINATION "${SKBUILD_DATA_DIR}/share/hvd_bench/steps" COMPONENT wheel)
if(HVD_WHEEL_LIBRARIES)
  # The second folder is where auditwheel, which does not know how pip moves files, finds them inside of the wheel.
  set_target_properties(hvd_bench PROPERTIES INSTALL_RPATH "$ORIGIN/../lib/hvd_bench:$ORIGIN/../data/lib/hvd_bench")
  target_sources(hvd_bench PRIVATE cmake/old_glibc.cpp)
  foreach(library ${HVD_WHEEL_LIBRARIES})
    get_filename_component(name "${library}" NAME)
    file(REAL_PATH "${library}" file)
    install(FILES "${file}" DESTINATION "${SKBUILD_DATA_DIR}/lib/hvd_bench" RENAME "${name}" COMPONENT wheel)
  endforeach()
  install(DIRECTORY "${HVD_SYSROOT}/licenses/" DESTINATION "${SKBUILD_DATA_DIR}/share/hvd_bench/licenses"
          COMPONENT wheel)
endif()
