# Installs the Python part: bin/hvdb, and the package hvdb in share/hvd_bench/python. The package's data files go where
# hvdb/base/data.py looks for them. scripts/pyproject.toml puts the same files into a wheel.
set(python_dir "${CMAKE_INSTALL_DATADIR}/hvd_bench/python")

install(DIRECTORY "${PROJECT_SOURCE_DIR}/scripts/hvdb" DESTINATION "${python_dir}" COMPONENT program
        FILES_MATCHING PATTERN "*.py" PATTERN "__pycache__" EXCLUDE)
install(FILES "${PROJECT_SOURCE_DIR}/scripts/lib/python.sh" DESTINATION "${python_dir}/lib" COMPONENT program)
install(FILES "${PROJECT_SOURCE_DIR}/results/schema.sql" "${PROJECT_SOURCE_DIR}/results/schema_2.sql"
              "${PROJECT_SOURCE_DIR}/results/names.json" "${PROJECT_SOURCE_DIR}/results/options.json"
              "${PROJECT_SOURCE_DIR}/results/published.csv"
              "${PROJECT_SOURCE_DIR}/results/history.schema.json" "${PROJECT_SOURCE_DIR}/results/prediction.schema.json"
              "${PROJECT_SOURCE_DIR}/results/verdict.schema.json"
              "${PROJECT_SOURCE_DIR}/slurm/job_body.sh" "${PROJECT_SOURCE_DIR}/LICENSE"
        DESTINATION "${python_dir}/hvdb/data" COMPONENT program)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/slurm/sites" "${PROJECT_SOURCE_DIR}/slurm/specs"
                  "${PROJECT_SOURCE_DIR}/results/steps"
        DESTINATION "${python_dir}/hvdb/data" COMPONENT program)

# The launcher finds the package by a path relative to the launcher's folder, so that a user can move the prefix.
file(RELATIVE_PATH python_from_bin "${CMAKE_INSTALL_FULL_BINDIR}" "${CMAKE_INSTALL_FULL_DATADIR}/hvd_bench/python")
configure_file("${PROJECT_SOURCE_DIR}/cmake/hvdb.in" "${CMAKE_CURRENT_BINARY_DIR}/hvdb" @ONLY)
install(PROGRAMS "${CMAKE_CURRENT_BINARY_DIR}/hvdb" DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT program)

# The completions are printed by the installed hvdb itself.
install(CODE "set(hvdb_bindir \"${CMAKE_INSTALL_BINDIR}\")\nset(hvdb_datadir \"${CMAKE_INSTALL_DATADIR}\")"
        COMPONENT program)
install(SCRIPT "${PROJECT_SOURCE_DIR}/cmake/InstallCompletion.cmake" COMPONENT program)
