# Makes build_info.cpp, which contains version, commit, compiler, flags, and the schema of the store as text.
#
# include() of this file defines hvd_add_build_info(TARGET). Every build also runs this file as a script (cmake -P). The
# script looks up the commit. To avoid needless compilation, it rewrites build_info.cpp only if something changed.
if(CMAKE_SCRIPT_MODE_FILE)
  set(git_commit unknown)
  set(git_state unknown)
  # git sets these variables for hooks. The repository of a hook need not be that of the sources, such as a worktree.
  foreach(name GIT_DIR GIT_COMMON_DIR GIT_WORK_TREE GIT_INDEX_FILE GIT_OBJECT_DIRECTORY)
    unset(ENV{${name}})
  endforeach()
  execute_process(COMMAND git rev-parse --show-prefix HEAD WORKING_DIRECTORY "${source}" RESULT_VARIABLE failed
                  OUTPUT_VARIABLE head ERROR_QUIET)
  string(STRIP "${head}" head)
  # Sources that were unpacked inside another repository have a prefix there: "folder/", then the hash.
  if(NOT failed AND head MATCHES "^[0-9a-f]+$")
    set(git_commit "${head}")
    execute_process(COMMAND git --no-optional-locks status --porcelain --untracked-files=no WORKING_DIRECTORY "${source}"
                    OUTPUT_VARIABLE changes ERROR_QUIET)
    set(git_state clean)
    if(changes)
      set(git_state dirty)
    endif()
  endif()
  file(READ "${source}/results/schema.sql" schema)
  file(READ "${source}/results/schema_2.sql" schema_2)
  configure_file("${source}/bench/store/build_info.cpp.in" "${output}" @ONLY)
  return()
endif()

function(hvd_add_build_info target)
  set(output "${CMAKE_CURRENT_BINARY_DIR}/build_info.cpp")
  string(TOUPPER "${CMAKE_BUILD_TYPE}" type)
  string(STRIP "${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${type}}" flags)
  add_custom_target(${target}_build_info ALL
    COMMAND ${CMAKE_COMMAND} "-Dsource=${PROJECT_SOURCE_DIR}" "-Doutput=${output}" "-Dversion=${HVD_VERSION}"
            "-Dcompiler=${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}" "-Dflags=${flags}"
            "-Dbuild_type=${CMAKE_BUILD_TYPE}" -P "${PROJECT_SOURCE_DIR}/cmake/BuildInfo.cmake"
    BYPRODUCTS "${output}" COMMENT "Looking up the commit" VERBATIM)
  target_sources(${target} PRIVATE "${output}")
  add_dependencies(${target} ${target}_build_info)
endfunction()
