# Each folder is one library, so that linking fails if code breaks the dependency rule of docs/architecture.md.
add_library(hvd_settings INTERFACE)
target_compile_features(hvd_settings INTERFACE cxx_std_20)
target_include_directories(hvd_settings INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:include/hvd_bench>)

set(werror "")
if(HVD_WERROR AND ((CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13) OR
                   (CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 15)))
  set(werror -Werror)
endif()

# Warnings and sanitizers apply only to our own code and are not exported.
add_library(hvd_strict INTERFACE)
# Without -ffp-contract=off, compilers turn a * b + c into one instruction where every processor has it, as on Arm. Its
# rounding differs: ranks, vector levels (engine/base/at_level.h) and references in the tests must compute the same
# bits.
target_compile_options(hvd_strict INTERFACE -ffp-contract=off
  # Paths in programs begin at the checkout, so that builds do not depend on where it is, and checkouts share ccache.
  "-ffile-prefix-map=${PROJECT_SOURCE_DIR}/=" -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual
  -Wnull-dereference -Wimplicit-fallthrough ${werror}
  $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety>
  # Replaces clang-tidy's bugprone-reserved-identifier, which would take a sixth of clang-tidy's time.
  $<$<CXX_COMPILER_ID:Clang>:-Wreserved-identifier>
  # g++ 12's -Wrestrict has false positives on std::string concatenation at -O3:
  # https://gcc.gnu.org/bugzilla/show_bug.cgi?id=105651
  $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict>)
if(HVD_SANITIZE OR CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  # With sanitizers on, and on Arm, g++ 12 warns about null pointers in the standard library's strings.
  target_compile_options(hvd_strict INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-null-dereference>)
endif()
if(HVD_SANITIZE)
  # The tests' own code is not checked for undefined behaviour: the check takes a third of the tests' compile time.
  target_compile_options(hvd_strict INTERFACE -fsanitize=${HVD_SANITIZE} -fno-omit-frame-pointer
    $<$<BOOL:$<TARGET_PROPERTY:HVD_IS_TEST>>:-fno-sanitize=undefined>)
  target_link_options(hvd_strict INTERFACE -fsanitize=${HVD_SANITIZE})
endif()

# hvd_add_library(NAME SOURCES...): a static library, as target hvd_NAME with the alias hvd::NAME.
function(hvd_add_library name)
  add_library(hvd_${name} STATIC ${ARGN})
  add_library(hvd::${name} ALIAS hvd_${name})
  set_target_properties(hvd_${name} PROPERTIES EXPORT_NAME ${name})
  target_link_libraries(hvd_${name} PUBLIC hvd_settings PRIVATE $<BUILD_INTERFACE:hvd_strict>)
  # If CMAKE_UNITY_BUILD is on, each folder is one translation unit; sources with their own options stay separate.
  set_target_properties(hvd_${name} PROPERTIES UNITY_BUILD_MODE GROUP)
  foreach(source ${ARGN})
    get_filename_component(folder "${source}" DIRECTORY)
    string(MAKE_C_IDENTIFIER "folder_${folder}" group)
    set_source_files_properties("${source}" PROPERTIES UNITY_GROUP "${group}")
  endforeach()
  if(HVD_CLANG_TIDY)
    set_target_properties(hvd_${name} PROPERTIES CXX_CLANG_TIDY "clang-tidy")
  endif()
endfunction()

# hvd_join_folders(NAME FOLDER...): these folders of library NAME ("." is its own) become one translation unit if
# CMAKE_UNITY_BUILD is on, so that their common headers are parsed once.
function(hvd_join_folders name)
  get_target_property(sources hvd_${name} SOURCES)
  foreach(source ${sources})
    get_filename_component(folder "./${source}" DIRECTORY)
    string(REGEX REPLACE "^\\./" "" folder "${folder}")
    if(folder IN_LIST ARGN)
      set_source_files_properties("${source}" PROPERTIES UNITY_GROUP "folders_from_${ARGV1}")
    endif()
  endforeach()
endfunction()

# hvd_not_hot(NAME): nothing in library NAME takes long at run time. It is compiled at -O1, in two thirds of the time.
# Sources with options of their own keep these.
function(hvd_not_hot name)
  if(NOT HVD_SANITIZE AND NOT CMAKE_BUILD_TYPE STREQUAL "Debug")
    target_compile_options(hvd_${name} PRIVATE -O1)
  endif()
endfunction()

# hvd_add_executable(NAME SOURCES...): a program in bin/, compiled with hvd_strict.
function(hvd_add_executable name)
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE hvd_settings hvd_strict)
  set_target_properties(${name} PROPERTIES UNITY_BUILD OFF)
endfunction()

# hvd_add_test(NAME LABEL <label> SOURCES ... LIBRARIES ... [TIMEOUT s] [COMPUTES_LITTLE]): a GoogleTest program and its
# ctest entry. If CMAKE_UNITY_BUILD is on, the SOURCES form one translation unit, so that the compiler parses GoogleTest
# and our headers once. Each source must therefore have its own namespace.
function(hvd_add_test name)
  cmake_parse_arguments(arg "COMPUTES_LITTLE" "LABEL;TIMEOUT" "SOURCES;LIBRARIES" ${ARGN})
  hvd_add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ${arg_LIBRARIES} GTest::gtest GTest::gtest_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests"
    HVD_IS_TEST ON UNITY_BUILD "${CMAKE_UNITY_BUILD}" UNITY_BUILD_BATCH_SIZE 0)
  # At -O1 the test's own code compiles in two thirds of the time that it needs with the build's usual options, and at
  # -O0 in two thirds of that. Tests that compute much themselves would lose more when they run.
  if(HVD_SANITIZE OR (arg_COMPUTES_LITTLE AND NOT CMAKE_BUILD_TYPE STREQUAL "Debug"))
    target_compile_options(${name} PRIVATE -O0)
  elseif(NOT CMAKE_BUILD_TYPE STREQUAL "Debug")
    target_compile_options(${name} PRIVATE -O1)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 1800)  # only catches hangs
  endif()
  if(HVD_SANITIZE)
    math(EXPR arg_TIMEOUT "3 * ${arg_TIMEOUT}")
  endif()
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABEL}" TIMEOUT ${arg_TIMEOUT})
  if(arg_LABEL MATCHES "^(unit|quick)$")
    set_property(GLOBAL APPEND PROPERTY HVD_QUICK_TESTS ${name})
  endif()
  if(arg_LABEL STREQUAL "gpu")
    set_property(GLOBAL APPEND PROPERTY HVD_GPU_TESTS ${name})  # the bundle contains these tests
  endif()
  if(arg_LABEL MATCHES "^(gpu|golden|slow)$")
    hvd_not_sanitized(${name})
  endif()
endfunction()

# hvd_mark_slow(NAME...): marks tests of whole networks, which take minutes in a sanitizer build.
function(hvd_mark_slow)
  foreach(name ${ARGN})
    set_property(TEST ${name} APPEND PROPERTY LABELS slow)
    set_property(GLOBAL APPEND PROPERTY HVD_SLOW_TESTS ${name})
    hvd_not_sanitized(${name})
  endforeach()
endfunction()

# hvd_mark_long(NAME...): marks tests that only scripts/test --all runs.
function(hvd_mark_long)
  foreach(name ${ARGN})
    set_property(TEST ${name} APPEND PROPERTY LABELS long)
  endforeach()
endfunction()

# hvd_not_sanitized(NAME): sanitizer presets build this test only if it is named. Shorter tests cover the same code.
function(hvd_not_sanitized name)
  if(HVD_SANITIZE)
    set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL TRUE)
    set_tests_properties(${name} PROPERTIES DISABLED TRUE)
  endif()
endfunction()

# hvd_add_stand_in(NAME FOLDER FILE SOURCE): builds the library FILE ("libcudnn.so.9") in tests/stand_ins/FOLDER of the
# build. The program under test loads FILE instead of the real library.
function(hvd_add_stand_in name folder file source)
  add_library(${name} SHARED ${source})
  target_link_libraries(${name} PRIVATE hvd_strict)
  string(REGEX MATCH "\\.so.*" suffix "${file}")
  string(REGEX REPLACE "^lib|\\.so.*" "" stem "${file}")
  set_target_properties(${name} PROPERTIES LIBRARY_OUTPUT_NAME ${stem} SUFFIX ${suffix} UNITY_BUILD OFF
    LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests/stand_ins/${folder}")
endfunction()
