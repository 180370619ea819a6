# Installs the library into a fresh prefix, builds docs/examples/EXAMPLE against it as a user would, and runs the
# program. Variables: EXAMPLE, BUILD_DIR, SOURCE_DIR, WORK_DIR, CXX, CXX_FLAGS, LAUNCH (a list: mpirun and its options,
# or empty), EXPECTED (the line that the program must print).
function(run what)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${what} failed (${status}):\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE "${WORK_DIR}")
run("installing" ${CMAKE_COMMAND} --install "${BUILD_DIR}" --component engine --prefix "${WORK_DIR}/prefix")
run("configuring the example" ${CMAKE_COMMAND} -S "${SOURCE_DIR}/docs/examples/${EXAMPLE}" -B "${WORK_DIR}/build" -G Ninja
    "-DCMAKE_PREFIX_PATH=${WORK_DIR}/prefix" "-DCMAKE_CXX_COMPILER=${CXX}" "-DCMAKE_CXX_FLAGS=${CXX_FLAGS}"
    -DCMAKE_BUILD_TYPE=RelWithDebInfo)
run("building the example" ${CMAKE_COMMAND} --build "${WORK_DIR}/build")
run("running the example" ${LAUNCH} "${WORK_DIR}/build/${EXAMPLE}")
if(NOT output MATCHES "${EXPECTED}")
  message(FATAL_ERROR "the example printed:\n${output}\nexpected: ${EXPECTED}")
endif()
message(STATUS "${output}")
