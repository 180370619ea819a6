# Defines the target SQLite::SQLite3: the system's library, or the source in HVD_SQLITE_SOURCE, compiled into the
# program. Sets SQLite3_VERSION, and hvd_sqlite_origin for the summary.
set(HVD_SQLITE_OLDEST 3.37)  # the first with STRICT tables: https://www.sqlite.org/stricttables.html

if(NOT HVD_SQLITE_SOURCE)
  find_package(SQLite3 ${HVD_SQLITE_OLDEST} QUIET)
  if(NOT SQLite3_FOUND)
    if(NOT SQLite3_VERSION)
      set(SQLite3_VERSION none)
    endif()
    message(FATAL_ERROR "SQLite ${HVD_SQLITE_OLDEST} or newer, with headers, was not found (here is: ${SQLite3_VERSION}). Install it (Debian: apt-get install libsqlite3-dev), or point HVD_SQLITE_SOURCE at a folder with sqlite3.c and sqlite3.h.")
  endif()
  return()
endif()

foreach(file sqlite3.c sqlite3.h)
  if(NOT EXISTS "${HVD_SQLITE_SOURCE}/${file}")
    message(FATAL_ERROR "HVD_SQLITE_SOURCE: there is no ${HVD_SQLITE_SOURCE}/${file}. In SQLite's source tree, `./configure && make sqlite3.c` makes it.")
  endif()
endforeach()
file(STRINGS "${HVD_SQLITE_SOURCE}/sqlite3.h" hvd_sqlite_line REGEX "^#define SQLITE_VERSION +\"[0-9.]+\"" LIMIT_COUNT 1)
string(REGEX REPLACE ".*\"(.*)\"" "\\1" SQLite3_VERSION "${hvd_sqlite_line}")
if(SQLite3_VERSION VERSION_LESS HVD_SQLITE_OLDEST)
  message(FATAL_ERROR "HVD_SQLITE_SOURCE: ${HVD_SQLITE_SOURCE} holds SQLite '${SQLite3_VERSION}', and ${HVD_SQLITE_OLDEST} or newer is needed.")
endif()

enable_language(C)
add_library(hvd_sqlite STATIC "${HVD_SQLITE_SOURCE}/sqlite3.c")
add_library(SQLite::SQLite3 ALIAS hvd_sqlite)
target_include_directories(hvd_sqlite SYSTEM INTERFACE "${HVD_SQLITE_SOURCE}")
target_compile_definitions(hvd_sqlite PRIVATE SQLITE_OMIT_LOAD_EXTENSION)
target_compile_options(hvd_sqlite PRIVATE -w)
target_link_libraries(hvd_sqlite PRIVATE Threads::Threads)
# Hidden, so that a library that brings SQLite itself does not call this one.
set_target_properties(hvd_sqlite PROPERTIES C_VISIBILITY_PRESET hidden UNITY_BUILD OFF
  C_COMPILER_LAUNCHER "${CMAKE_CXX_COMPILER_LAUNCHER}")
set(hvd_sqlite_origin ", compiled from ${HVD_SQLITE_SOURCE}")
